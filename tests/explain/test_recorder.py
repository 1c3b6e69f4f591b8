"""What is recorded is what the model attends to, and watching it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig, PositionKind, ScoreKind, TaskName
from triform.errors import ConfigError
from triform.explain.recorder import AttentionRecord, record_attention
from triform.generation.adapters import DecoderAdapter, GenerationAdapter, Seq2SeqAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import Scheduler
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import Attention
from triform.nn.kernels.dispatch import dispatch_attention, use_fast_kernels
from triform.nn.kernels.packing import pack
from triform.nn.layouts import pad

VOCAB_SIZE, HEAD_DIM = 13, 4
SIZES = DataSizes(vocab_size=VOCAB_SIZE, max_len=24, n_labels=3)
MODEL_CLASSES: dict[TaskName, type[nn.Module]] = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
EVERY_TASK = pytest.mark.parametrize("task", MODEL_CLASSES)
ROWS, SOURCES = [[5, 6, 7, 8, 9], [4, 12]], [[6, 4, 11], [7, 7, 5, 9]]
POSITION_SCORE_PAIRS = [
    (positions, score)
    for positions, score in product(get_args(PositionKind), get_args(ScoreKind))
    if not (score == "additive" and positions in ("rotary", "relative"))
]
WINDOW_SETTINGS: dict[str, dict[str, Any]] = {"window": {"window": 3}, "layers": {"layer_windows": (2, -1)}}


@pytest.fixture(autouse=True)
def _float64_and_one_seed() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def build_model(task: TaskName, sizes: DataSizes = SIZES, **settings: Any) -> Any:
    """A model whose weights are large enough that attention is uneven."""
    model_sizes = {"d_model": 4 * HEAD_DIM, "d_ff": 8, "n_layers": 2, "n_heads": 4, "dropout": 0.0, "n_buckets": 8}
    model_config = ModelConfig(**model_sizes | {"max_distance": 6} | settings)
    model = use_fast_kernels(MODEL_CLASSES[task](model_config, sizes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def model_inputs(task: TaskName, *, packed: bool = False) -> tuple[Any, ...]:
    """What a model of this form is called with."""
    collate = pack if packed else pad
    rows, layout = collate(ROWS)
    if task != "translate":
        return rows, layout
    source, source_layout = collate(SOURCES)
    return source, rows, source_layout, layout


def record_weights(model: nn.Module, *inputs: Any) -> AttentionRecord:
    with record_attention(model) as recording, torch.no_grad():
        model(*inputs)
    return recording


def compute_used_weights(model: Any, *inputs: Any) -> dict[str, list[Tensor]]:
    """The weights that the kernels really use: what they answer where values are unit vectors, a few at a time."""
    weights_by_stack: dict[str, list[Tensor]] = {}

    def make_spy(weights: list[Tensor]) -> Callable[..., Tensor]:
        def kernel(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
            # What relative positions add by themselves.
            offset = dispatch_attention(q, k, torch.zeros_like(v), *rest)
            chunks = []
            for start in range(0, k.shape[2], HEAD_DIM):
                unit_values = torch.eye(k.shape[2])[:, start : start + HEAD_DIM]
                unit_values = nn.functional.pad(unit_values, (0, HEAD_DIM - unit_values.shape[1]))
                chunks.append(dispatch_attention(q, k, unit_values.expand_as(v), *rest) - offset)
            weights.append(torch.cat(chunks, dim=-1)[..., : k.shape[2]])
            return dispatch_attention(q, k, v, *rest)

        return kernel

    layers = {name: list(stack) for name, stack in model.attention_stacks().items()}
    for name, stack in layers.items():
        weights_by_stack[name] = []
        for layer in stack:
            layer.kernel = make_spy(weights_by_stack[name])
    with torch.no_grad():
        model(*inputs)
    for stack in layers.values():
        for layer in stack:
            layer.kernel = dispatch_attention
    return weights_by_stack


def assert_recorded_matches_used(model: Any, *inputs: Any) -> None:
    recording, used_weights = record_weights(model, *inputs), compute_used_weights(model, *inputs)
    assert set(recording.stacks()) == set(used_weights)
    for stack, layers in used_weights.items():
        torch.testing.assert_close(recording[stack], torch.stack(layers).float(), atol=1e-6, rtol=0)


@torch.no_grad()
def test_weights_equal_the_formula_by_hand() -> None:
    model = build_model("generate", positions="none")
    layer_inputs: list[Tensor] = []
    layers: list[Attention] = model.attention_stacks()["decoder"]
    handles = [
        layer.register_forward_pre_hook(lambda module, args: layer_inputs.append(args[0])) for layer in layers
    ]
    tokens = torch.tensor([ROWS[0]])
    weights = record_weights(model, tokens)["decoder"]
    for handle in handles:
        handle.remove()
    assert weights.shape == (2, 1, 4, 5, 5)
    for index, (layer, x) in enumerate(zip(layers, layer_inputs, strict=True)):
        queries = x @ layer.q_proj.weight.T + layer.q_proj.bias
        keys = (x @ layer.kv_proj.weight.T + layer.kv_proj.bias)[..., : 4 * HEAD_DIM]
        for head, query in product(range(4), range(5)):
            columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            scores = [
                float(queries[0, query, columns] @ keys[0, key, columns]) / HEAD_DIM**0.5
                for key in range(query + 1)
            ]
            expected = torch.tensor(scores).softmax(0).float()
            torch.testing.assert_close(weights[index, 0, head, query, : query + 1], expected, atol=1e-6, rtol=0)
            assert not weights[index, 0, head, query, query + 1 :].any()


@EVERY_TASK
@pytest.mark.parametrize(("positions", "score"), POSITION_SCORE_PAIRS)
def test_every_position_and_score_is_recorded_as_it_is_used(task: TaskName, positions: str, score: str) -> None:
    model = build_model(task, positions=positions, attention_score=score, n_kv_heads=2)
    assert_recorded_matches_used(model, *model_inputs(task))


@EVERY_TASK
@pytest.mark.parametrize("windows", WINDOW_SETTINGS)
@pytest.mark.parametrize("packed", [False, True])
def test_windows_and_packed_rows_are_recorded_as_they_are_used(task: TaskName, windows: str, packed: bool) -> None:
    for kv_heads in (4, 1):
        model = build_model(task, **WINDOW_SETTINGS[windows], n_kv_heads=kv_heads)
        assert_recorded_matches_used(model, *model_inputs(task, packed=packed))


def test_a_window_cut_in_pieces_is_recorded_whole() -> None:
    model = build_model("generate", replace(SIZES, max_len=150), window=5, n_layers=1)
    assert_recorded_matches_used(model, torch.randint(VOCAB_SIZE, (1, 150)))


@EVERY_TASK
def test_rows_of_real_queries_sum_to_one(task: TaskName) -> None:
    recording = record_weights(build_model(task), *model_inputs(task))
    for stack in recording.stacks():
        weights = recording[stack]
        queries = SOURCES if task == "translate" and stack == "encoder" else ROWS
        for row, tokens in enumerate(queries):
            sums = weights[:, row, :, : len(tokens)].sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


@EVERY_TASK
def test_packed_rows_do_not_read_one_another(task: TaskName) -> None:
    recording = record_weights(build_model(task), *model_inputs(task, packed=True))
    for stack in recording.stacks():
        weights = recording[stack]
        of_queries = SOURCES if task == "translate" and stack == "encoder" else ROWS
        of_keys = SOURCES if task == "translate" and stack != "decoder" else ROWS
        query_rows, key_rows = (
            torch.tensor([row for row, tokens in enumerate(rows) for _ in tokens]) for rows in (of_queries, of_keys)
        )
        is_other_row = query_rows[:, None] != key_rows
        assert weights.shape[-2:] == is_other_row.shape
        assert not weights[..., is_other_row].any()
        assert weights[..., ~is_other_row].any()


@EVERY_TASK
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_answers_are_bit_for_bit_what_they_were(task: TaskName, kind: torch.dtype) -> None:
    model = build_model(task, window=3).to(kind)
    inputs = model_inputs(task)
    with torch.no_grad():
        before = model(*inputs)
        with record_attention(model):
            during = model(*inputs)
        after = model(*inputs)
    assert torch.equal(before, during)
    assert torch.equal(before, after)


@EVERY_TASK
def test_recorded_weights_are_single_precision_and_carry_no_gradient(task: TaskName) -> None:
    model = build_model(task)
    with record_attention(model) as recording:
        model(*model_inputs(task))
    for stack in recording.stacks():
        assert recording[stack].dtype == torch.float32
        assert not recording[stack].requires_grad


@EVERY_TASK
def test_gradients_flow_as_always_while_recording(task: TaskName) -> None:
    model, inputs = build_model(task, attention_dropout=0.3, dropout=0.2).train(), model_inputs(task)

    def gradients() -> list[Tensor]:
        torch.manual_seed(7)
        return list(torch.autograd.grad(model(*inputs).square().sum(), list(model.parameters())))

    before = gradients()
    with record_attention(model):
        during = gradients()
    for one, other in zip(before, during, strict=True):
        assert torch.equal(one, other)


@EVERY_TASK
def test_dropout_is_not_in_what_is_recorded(task: TaskName) -> None:
    model = build_model(task, attention_dropout=0.5)
    in_eval = record_weights(model, *model_inputs(task))
    in_training = record_weights(model.train(), *model_inputs(task))
    first = in_eval.stacks()[0]
    assert torch.equal(in_eval[first][0], in_training[first][0])  # later layers read what dropout left
    for stack in in_training.stacks():
        sums = in_training[stack][:, 0, :, :2].sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def get_kernels(model: Any) -> list[Any]:
    return [layer.kernel for stack in model.attention_stacks().values() for layer in stack]


@EVERY_TASK
def test_kernels_are_what_they_were_afterwards(task: TaskName) -> None:
    model = build_model(task)
    own_kernels = [lambda *args, index=index: dispatch_attention(*args) for index in range(len(get_kernels(model)))]
    for layer, kernel in zip(
        (attention_layer for stack in model.attention_stacks().values() for attention_layer in stack),
        own_kernels,
        strict=True,
    ):
        layer.kernel = kernel
    with record_attention(model):
        assert not set(own_kernels) & set(get_kernels(model))
    assert get_kernels(model) == own_kernels
    with pytest.raises(ZeroDivisionError), record_attention(model):
        raise ZeroDivisionError
    assert get_kernels(model) == own_kernels


def test_a_recording_within_a_recording_sees_its_own_part() -> None:
    model, tokens = build_model("generate"), torch.tensor([ROWS[0]])
    with torch.no_grad(), record_attention(model) as outer:
        with record_attention(model) as inner:
            model(tokens)
        model(tokens)
    assert [len(layer) for layer in inner.calls["decoder"]] == [1, 1]
    assert [len(layer) for layer in outer.calls["decoder"]] == [2, 2]
    assert torch.equal(outer.calls["decoder"][0][0], inner["decoder"][0])
    assert set(get_kernels(model)) == {dispatch_attention}


def test_a_second_recording_starts_anew() -> None:
    model = build_model("classify")
    first, second = (record_weights(model, *model_inputs("classify")) for _ in range(2))
    assert torch.equal(first["encoder"], second["encoder"])


def test_only_stacks_that_were_at_work_are_named() -> None:
    model = build_model("translate")
    with record_attention(model) as recording, torch.no_grad():
        assert recording.stacks() == ()
        model.encoder(torch.tensor(SOURCES[:1]))
    assert recording.stacks() == ("encoder",)


@pytest.mark.parametrize("model", [nn.LSTM(4, 4), nn.Linear(2, 2), nn.Sequential()])
def test_a_model_without_attention_is_refused(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match="no attention to show"), record_attention(model):
        pass


# ------------------------------------------------------------------------------------------ step by step

STEPPED_SETTINGS = [
    dict[str, Any](),
    {"window": 3},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "relative"},
]


def decode_greedily(adapter: GenerationAdapter, rows: list[list[int]], *limits: int) -> list[list[int]]:
    """Generate so many tokens for each row, all of them in one batch."""
    outputs: dict[int, list[int]] = {}
    with Scheduler(adapter, TokenConstraints(eos=-1)) as scheduler:
        for row, limit in zip(rows, limits, strict=True):
            scheduler.submit(Request(row, limit))
        while scheduler.n_unfinished:
            outputs |= scheduler.step()
    return [outputs[row] for row in range(len(rows))]


@pytest.mark.parametrize("model_settings", STEPPED_SETTINGS, ids=str)
def test_writing_with_a_cache_is_recorded_as_one_pass_over_what_was_written(model_settings: dict[str, Any]) -> None:
    model = build_model("translate", **model_settings)
    with record_attention(model) as steps:
        written = decode_greedily(Seq2SeqAdapter(model, SIZES.max_len, bos=2), SOURCES, 6, 6)
    targets = torch.tensor([[2, *row[:-1]] for row in written])  # the last token is written and never read
    source, keep = pad(SOURCES)
    full_pass = record_weights(model, source, targets, keep)
    for stack in ("encoder", "decoder", "cross"):
        torch.testing.assert_close(steps[stack], full_pass[stack], atol=1e-6, rtol=0)
    assert [tuple(step.shape) for step in steps.calls["cross"][0]] == [(2, 4, 1, 4)] * 6


@pytest.mark.parametrize("model_settings", STEPPED_SETTINGS, ids=str)
def test_going_on_with_a_cache_is_recorded_as_one_pass(model_settings: dict[str, Any]) -> None:
    model = build_model("generate", **model_settings)
    prompts = [[5, 6, 7], [8, 9, 4]]
    with record_attention(model) as steps:
        written = decode_greedily(DecoderAdapter(model, SIZES.max_len), prompts, 5, 5)
    rows = torch.tensor([prompt + row[:-1] for prompt, row in zip(prompts, written, strict=True)])
    torch.testing.assert_close(steps["decoder"], record_weights(model, rows)["decoder"], atol=1e-6, rtol=0)


def test_prompts_of_unequal_length_are_recorded_with_their_padding_unread() -> None:
    model = build_model("generate")
    prompts = [[5, 6, 7, 8], [9]]
    with record_attention(model) as steps:
        written = decode_greedily(DecoderAdapter(model, SIZES.max_len), prompts, 4, 4)
    for row, prompt in enumerate(prompts):
        single_weights = record_weights(model, torch.tensor([prompt + written[row][:-1]]))["decoder"][:, 0]
        left = len(prompts[0]) - len(prompt)
        stepped_weights = steps["decoder"][:, row]
        torch.testing.assert_close(stepped_weights[:, :, left:, left:], single_weights, atol=1e-6, rtol=0)
        assert not stepped_weights[..., :left].any()


def test_rows_that_end_early_leave_every_step_and_a_way_out() -> None:
    model = build_model("translate")
    with record_attention(model) as steps:
        decode_greedily(Seq2SeqAdapter(model, SIZES.max_len, bos=2), SOURCES, 2, 5)
    with pytest.raises(ConfigError, match=r"rows left the batch .* read the steps from \.calls"):
        steps["cross"]
    for layer in steps.calls["cross"]:
        assert [step.shape[0] for step in layer] == [2, 2, 1, 1, 1]
    assert steps["encoder"].shape[1] == 2  # read once, before any row left


@pytest.mark.parametrize("stack", ["decoder", "nonsense"])
def test_a_stack_that_was_not_at_work_is_asked_for_in_vain_and_told_so(stack: str) -> None:
    model = build_model("translate")
    with record_attention(model) as recording, torch.no_grad():
        model.encoder(torch.tensor(SOURCES[:1]))
    with pytest.raises(ConfigError, match="encoder"):
        recording[stack]


def test_a_context_that_is_full_begins_anew_and_is_not_one_map() -> None:
    model = build_model("generate")
    with record_attention(model) as steps:
        decode_greedily(DecoderAdapter(model, 6), [[5, 6, 7, 8, 9]], 6)
    assert [step.shape[-1] for step in steps.calls["decoder"][0]] == [5, 6, 4, 5, 6, 4]
    with pytest.raises(ConfigError, match=r"read the steps from \.calls"):
        steps["decoder"]
