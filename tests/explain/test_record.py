"""What is recorded is what the model attends to, and watching it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from triform.config import ModelConfig, PositionKind, ScoreKind, Sizes, TaskName
from triform.decode.beam import Ending
from triform.decode.choose import best
from triform.decode.forms import DecoderForm, Seq2SeqForm
from triform.decode.search import write
from triform.decode.stepper import Cached
from triform.errors import ConfigError
from triform.explain.record import Recording, record_attention
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import Attention
from triform.nn.choice import automatic
from triform.nn.rows import pack, pad

V, WIDTH = 13, 4
SIZES = Sizes(vocab_size=V, max_len=24, n_labels=3)
FORMS: dict[TaskName, type[nn.Module]] = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
EVERY_FORM = pytest.mark.parametrize("task", FORMS)
ROWS, SOURCES = [[5, 6, 7, 8, 9], [4, 12]], [[6, 4, 11], [7, 7, 5, 9]]
MATCHES = [
    (positions, score)
    for positions, score in product(get_args(PositionKind), get_args(ScoreKind))
    if not (score == "additive" and positions in ("rotary", "relative"))
]
WINDOWS: dict[str, dict[str, Any]] = {"window": {"window": 3}, "layers": {"layer_windows": (2, -1)}}


@pytest.fixture(autouse=True)
def _float64_and_one_seed() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def made(task: TaskName, sizes: Sizes = SIZES, **chosen: Any) -> Any:
    """A model whose weights are large enough that attention is uneven."""
    shape = {"d_model": 4 * WIDTH, "d_ff": 8, "n_layers": 2, "n_heads": 4, "dropout": 0.0, "n_buckets": 8}
    model = FORMS[task](ModelConfig(**shape | {"max_distance": 6} | chosen), sizes)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def asked(task: TaskName, *, packed: bool = False) -> tuple[Any, ...]:
    """What a model of this form is called with."""
    lay = pack if packed else pad
    rows, keep = lay(ROWS)
    if task != "translate":
        return rows, keep
    source, source_keep = lay(SOURCES)
    return source, rows, source_keep, keep


def recorded(model: nn.Module, *inputs: Any) -> Recording:
    with record_attention(model) as recording, torch.no_grad():
        model(*inputs)
    return recording


def used(model: Any, *inputs: Any) -> dict[str, list[Tensor]]:
    """The weights that the kernels really use: what they answer where values are unit vectors, a few at a time."""
    found: dict[str, list[Tensor]] = {}

    def spy(seen: list[Tensor]) -> Callable[..., Tensor]:
        def kernel(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
            nothing = automatic(q, k, torch.zeros_like(v), *how)  # what relative positions add by themselves
            parts = []
            for start in range(0, k.shape[2], WIDTH):
                units = torch.eye(k.shape[2])[:, start : start + WIDTH]
                units = nn.functional.pad(units, (0, WIDTH - units.shape[1]))
                parts.append(automatic(q, k, units.expand_as(v), *how) - nothing)
            seen.append(torch.cat(parts, dim=-1)[..., : k.shape[2]])
            return automatic(q, k, v, *how)

        return kernel

    layers = {name: list(stack) for name, stack in model.attention_stacks().items()}
    for name, stack in layers.items():
        found[name] = []
        for layer in stack:
            layer.kernel = spy(found[name])
    with torch.no_grad():
        model(*inputs)
    for stack in layers.values():
        for layer in stack:
            layer.kernel = automatic
    return found


def assert_recorded_as_used(model: Any, *inputs: Any) -> None:
    recording, truth = recorded(model, *inputs), used(model, *inputs)
    assert set(recording.stacks()) == set(truth)
    for stack, layers in truth.items():
        torch.testing.assert_close(recording[stack], torch.stack(layers).float(), atol=1e-6, rtol=0)


@torch.no_grad()
def test_weights_equal_the_formula_by_hand() -> None:
    model = made("generate", positions="none")
    entered: list[Tensor] = []
    layers: list[Attention] = model.attention_stacks()["decoder"]
    handles = [layer.register_forward_pre_hook(lambda module, args: entered.append(args[0])) for layer in layers]
    tokens = torch.tensor([ROWS[0]])
    seen = recorded(model, tokens)["decoder"]
    for handle in handles:
        handle.remove()
    assert seen.shape == (2, 1, 4, 5, 5)
    for number, (layer, x) in enumerate(zip(layers, entered, strict=True)):
        queries = x @ layer.query.weight.T + layer.query.bias
        keys = (x @ layer.key_value.weight.T + layer.key_value.bias)[..., : 4 * WIDTH]
        for head, query in product(range(4), range(5)):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            scores = [float(queries[0, query, part] @ keys[0, key, part]) / WIDTH**0.5 for key in range(query + 1)]
            shares = torch.tensor(scores).softmax(0).float()
            torch.testing.assert_close(seen[number, 0, head, query, : query + 1], shares, atol=1e-6, rtol=0)
            assert not seen[number, 0, head, query, query + 1 :].any()


@EVERY_FORM
@pytest.mark.parametrize(("positions", "score"), MATCHES)
def test_every_position_and_score_is_recorded_as_it_is_used(task: TaskName, positions: str, score: str) -> None:
    model = made(task, positions=positions, score=score, n_kv_heads=2)
    assert_recorded_as_used(model, *asked(task))


@EVERY_FORM
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("packed", [False, True])
def test_windows_and_packed_rows_are_recorded_as_they_are_used(task: TaskName, windows: str, packed: bool) -> None:
    for kv_heads in (4, 1):
        model = made(task, **WINDOWS[windows], n_kv_heads=kv_heads)
        assert_recorded_as_used(model, *asked(task, packed=packed))


def test_a_window_cut_in_pieces_is_recorded_whole() -> None:
    model = made("generate", replace(SIZES, max_len=150), window=5, n_layers=1)
    assert_recorded_as_used(model, torch.randint(V, (1, 150)))


@EVERY_FORM
def test_rows_of_real_queries_sum_to_one(task: TaskName) -> None:
    recording = recorded(made(task), *asked(task))
    for stack in recording.stacks():
        weights = recording[stack]
        queries = SOURCES if task == "translate" and stack == "encoder" else ROWS
        for row, tokens in enumerate(queries):
            sums = weights[:, row, :, : len(tokens)].sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


@EVERY_FORM
def test_packed_rows_do_not_read_one_another(task: TaskName) -> None:
    recording = recorded(made(task), *asked(task, packed=True))
    for stack in recording.stacks():
        weights = recording[stack]
        of_queries = SOURCES if task == "translate" and stack == "encoder" else ROWS
        of_keys = SOURCES if task == "translate" and stack != "decoder" else ROWS
        owners, owned = (
            torch.tensor([row for row, tokens in enumerate(rows) for _ in tokens]) for rows in (of_queries, of_keys)
        )
        apart = owners[:, None] != owned
        assert weights.shape[-2:] == apart.shape
        assert not weights[..., apart].any()
        assert weights[..., ~apart].any()


@EVERY_FORM
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_answers_are_bit_for_bit_what_they_were(task: TaskName, kind: torch.dtype) -> None:
    model = made(task, window=3).to(kind)
    inputs = asked(task)
    with torch.no_grad():
        before = model(*inputs)
        with record_attention(model):
            during = model(*inputs)
        after = model(*inputs)
    assert torch.equal(before, during)
    assert torch.equal(before, after)


@EVERY_FORM
def test_recorded_weights_are_single_precision_and_carry_no_gradient(task: TaskName) -> None:
    model = made(task)
    with record_attention(model) as recording:
        model(*asked(task))
    for stack in recording.stacks():
        assert recording[stack].dtype == torch.float32
        assert not recording[stack].requires_grad


@EVERY_FORM
def test_gradients_flow_as_always_while_recording(task: TaskName) -> None:
    model, inputs = made(task, attention_dropout=0.3, dropout=0.2).train(), asked(task)

    def gradients() -> list[Tensor]:
        torch.manual_seed(7)
        return list(torch.autograd.grad(model(*inputs).square().sum(), list(model.parameters())))

    before = gradients()
    with record_attention(model):
        during = gradients()
    for one, other in zip(before, during, strict=True):
        assert torch.equal(one, other)


@EVERY_FORM
def test_dropout_is_not_in_what_is_recorded(task: TaskName) -> None:
    model = made(task, attention_dropout=0.5)
    at_rest = recorded(model, *asked(task))
    in_training = recorded(model.train(), *asked(task))
    first = at_rest.stacks()[0]
    assert torch.equal(at_rest[first][0], in_training[first][0])  # later layers read what dropout left
    for stack in in_training.stacks():
        sums = in_training[stack][:, 0, :, :2].sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def kernels(model: Any) -> list[Any]:
    return [layer.kernel for stack in model.attention_stacks().values() for layer in stack]


@EVERY_FORM
def test_kernels_are_what_they_were_afterwards(task: TaskName) -> None:
    model = made(task)
    own = [lambda *args, number=number: automatic(*args) for number in range(len(kernels(model)))]
    for layer, kernel in zip(
        (one for stack in model.attention_stacks().values() for one in stack), own, strict=True
    ):
        layer.kernel = kernel
    with record_attention(model):
        assert not set(own) & set(kernels(model))
    assert kernels(model) == own
    with pytest.raises(ZeroDivisionError), record_attention(model):
        raise ZeroDivisionError
    assert kernels(model) == own


def test_a_recording_within_a_recording_sees_its_own_part() -> None:
    model, tokens = made("generate"), torch.tensor([ROWS[0]])
    with torch.no_grad(), record_attention(model) as outer:
        with record_attention(model) as inner:
            model(tokens)
        model(tokens)
    assert [len(layer) for layer in inner.calls["decoder"]] == [1, 1]
    assert [len(layer) for layer in outer.calls["decoder"]] == [2, 2]
    assert torch.equal(outer.calls["decoder"][0][0], inner["decoder"][0])
    assert set(kernels(model)) == {automatic}


def test_a_second_recording_starts_anew() -> None:
    model = made("classify")
    first, second = (recorded(model, *asked("classify")) for _ in range(2))
    assert torch.equal(first["encoder"], second["encoder"])


def test_only_stacks_that_were_at_work_are_named() -> None:
    model = made("translate")
    with record_attention(model) as recording, torch.no_grad():
        assert recording.stacks() == ()
        model.encoder(torch.tensor(SOURCES[:1]))
    assert recording.stacks() == ("encoder",)


@pytest.mark.parametrize("model", [nn.LSTM(4, 4), nn.Linear(2, 2), nn.Sequential()])
def test_a_model_without_attention_is_refused(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match="no attention to look at"), record_attention(model):
        pass


# ------------------------------------------------------------------------------------------ step by step

STEPS = [dict[str, Any](), {"window": 3}, {"positions": "rotary", "n_kv_heads": 1}, {"positions": "relative"}]


@pytest.mark.parametrize("chosen", STEPS, ids=str)
def test_writing_with_a_cache_is_recorded_as_one_pass_over_what_was_written(chosen: dict[str, Any]) -> None:
    model = made("translate", **chosen)
    with record_attention(model) as steps:
        stepper = Cached(Seq2SeqForm(model, SIZES.max_len, bos=2), SOURCES)
        written = write(stepper, best, Ending(eos=-1, limits=(6, 6)))
    targets = torch.tensor([[2, *row[:-1]] for row in written])  # the last token is written and never read
    source, keep = pad(SOURCES)
    whole = recorded(model, source, targets, keep)
    for stack in ("encoder", "decoder", "cross"):
        torch.testing.assert_close(steps[stack], whole[stack], atol=1e-6, rtol=0)
    assert [tuple(step.shape) for step in steps.calls["cross"][0]] == [(2, 4, 1, 4)] * 6


@pytest.mark.parametrize("chosen", STEPS, ids=str)
def test_going_on_with_a_cache_is_recorded_as_one_pass(chosen: dict[str, Any]) -> None:
    model = made("generate", **chosen)
    prompts = [[5, 6, 7], [8, 9, 4]]
    with record_attention(model) as steps:
        stepper = Cached(DecoderForm(model, SIZES.max_len), prompts)
        written = write(stepper, best, Ending(eos=-1, limits=(5, 5)))
    rows = torch.tensor([prompt + row[:-1] for prompt, row in zip(prompts, written, strict=True)])
    torch.testing.assert_close(steps["decoder"], recorded(model, rows)["decoder"], atol=1e-6, rtol=0)


def test_prompts_of_unequal_length_are_recorded_with_their_padding_unread() -> None:
    model = made("generate")
    prompts = [[5, 6, 7, 8], [9]]
    with record_attention(model) as steps:
        stepper = Cached(DecoderForm(model, SIZES.max_len), prompts)
        written = write(stepper, best, Ending(eos=-1, limits=(4, 4)))
    for row, prompt in enumerate(prompts):
        alone = recorded(model, torch.tensor([prompt + written[row][:-1]]))["decoder"][:, 0]
        left = len(prompts[0]) - len(prompt)
        seen = steps["decoder"][:, row]
        torch.testing.assert_close(seen[:, :, left:, left:], alone, atol=1e-6, rtol=0)
        assert not seen[..., :left].any()


def test_rows_that_end_early_leave_every_step_and_a_way_out() -> None:
    model = made("translate")
    with record_attention(model) as steps:
        write(Cached(Seq2SeqForm(model, SIZES.max_len, bos=2), SOURCES), best, Ending(eos=-1, limits=(2, 5)))
    with pytest.raises(ConfigError, match=r"rows were dropped .* read \.calls step by step"):
        steps["cross"]
    for layer in steps.calls["cross"]:
        assert [step.shape[0] for step in layer] == [2, 2, 1, 1, 1]
    assert steps["encoder"].shape[1] == 2  # read once, before any row left


@pytest.mark.parametrize("stack", ["decoder", "nonsense"])
def test_a_stack_that_was_not_at_work_is_asked_for_in_vain_and_told_so(stack: str) -> None:
    model = made("translate")
    with record_attention(model) as recording, torch.no_grad():
        model.encoder(torch.tensor(SOURCES[:1]))
    with pytest.raises(ConfigError, match="encoder"):
        recording[stack]


def test_a_context_that_is_full_begins_anew_and_is_not_one_map() -> None:
    model = made("generate")
    with record_attention(model) as steps:
        stepper = Cached(DecoderForm(model, 6), [[5, 6, 7, 8, 9]])
        write(stepper, best, Ending(eos=-1, limits=(6,)))
    assert [step.shape[-1] for step in steps.calls["decoder"][0]] == [5, 6, 4, 5, 6, 4]
    with pytest.raises(ConfigError, match=r"read \.calls step by step"):
        steps["decoder"]
