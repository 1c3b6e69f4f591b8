"""What only a GPU can show. Skipped elsewhere; the logic itself is tested on the CPU."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._dynamo.utils import counters

from triform.config import DataSizes, DecodeConfig, ModelConfig
from triform.errors import ConfigError
from triform.experiments.study.runner import compare
from triform.generation import graph as graph_backend
from triform.generation.adapters import DecoderAdapter, Seq2SeqAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import Scheduler, beam_settings, build_decoder_adapter, generate
from triform.launch import train
from triform.models.decoder import Decoder
from triform.models.factory import build_decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import AttentionKernel, ScoreFunction, naive_attention
from triform.nn.kernels.dispatch import FLEX, VARLEN, dispatch_attention, select_kernel, use_fast_kernels
from triform.nn.kernels.flex import flex_attention_kernel
from triform.nn.kernels.packing import PackedLayout
from triform.nn.kernels.sdpa import sdpa_attention
from triform.nn.kernels.tiling import tiled_sdpa_attention
from triform.nn.masks import AttentionMask, PaddingMask, causal_mask, full_mask, window_mask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES
from triform.run import load
from triform.training.train_step import TrainStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MODEL = {"d_model": 64, "n_layers": 2, "n_heads": 2, "dropout": 0.1}


def write_pairs(path: Path, words: tuple[str, ...] = ("one", "two", "three", "four")) -> str:
    """Sentences to translate, so few that an evaluation is short; the other tasks have their built-in sets."""
    pairs = [(a, b, c) for a in words for b in words for c in words]
    path.write_text("".join(f"{' '.join(pair)}\t{' '.join(pair).upper()}\n" for pair in pairs), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_padded_on_the_left_stay_finite_and_decode_as_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=64, d_ff=128, n_layers=3, n_heads=4)
    model = use_fast_kernels(Decoder(config, DataSizes(vocab_size=50, max_len=64))).to("cuda", dtype).eval()
    prompts = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22]]

    adapter = DecoderAdapter(model, 64)
    assert adapter.build_stepper().append_rows(prompts).isfinite().all()
    if dtype is torch.float32:
        requests = [Request(prompt, 20) for prompt in prompts]
        batched = decode(adapter, requests, use_cuda_graphs=False)
        assert batched == [decode(adapter, [request], use_cuda_graphs=False)[0] for request in requests]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_repeated_on_cuda_ends_with_the_same_bits(precision: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} says {n * 7919 % 9973}.\n" for n in range(20_000)), encoding="utf-8")
    settings = {"max_steps": 40, "batch_size": 8, "eval_every": 20, "checkpoint_every": 10, "precision": precision}

    def train_run(name: str, **kwargs: object) -> Path:
        result = train(
            "generate", data=str(text), out=str(tmp_path / name), device="cuda", quiet=True, seed=1,
            train=settings, model=MODEL, tokenizer={"kind": "bpe"}, **{"data.max_len": 512}, **kwargs,
        )  # fmt: skip
        return result.path

    first, second = train_run("one"), train_run("other")
    weights = [load_file(path / "model.safetensors") for path in (first, second)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_the_three_forms_train_and_answer_on_cuda(tmp_path: Path) -> None:
    for task, text in (("classify", "The soup was good."), ("generate", "The"), ("translate", "twenty-one")):
        result = train(
            task, out=str(tmp_path / task), device="cuda", quiet=True, train={"max_steps": 5}, model=MODEL
        )
        assert result.predict([text])[0].output
        assert result.evaluate()["loss"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "settings", [{"lora_rank": 4}, {"freeze_layers": 1, "layer_decay": 0.5}], ids=["lora", "layers"]
)
def test_fine_tuning_recorded_on_cuda_learns_as_on_the_cpu(
    settings: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    data = {"max_len": 32, "train": "builtin:stories"}
    train_settings = {
        "max_steps": 12,
        "batch_size": 8,
        "eval_every": 12,
        "lr": 0.1,
        "optimizer": "sgd",
        "precision": "fp32",
    }
    without_dropout = {**MODEL, "dropout": 0.0}
    base = train(
        "generate", data=data, model=without_dropout, train=train_settings, out=tmp_path / "base", quiet=True
    ).path
    before, weights_by_device = load_file(base / "model.safetensors"), []
    for device, device_precision in (("cpu", "fp32"), ("cuda", precision)):
        device_settings = {**train_settings, **settings, "precision": device_precision}
        result = train(
            "generate",
            data=data,
            init_from=base,
            train=device_settings,
            out=tmp_path / device,
            device=device,
            quiet=True,
        )
        weights_by_device.append(load_file(result.path / "model.safetensors"))
    for name, cpu_weights in weights_by_device[0].items():
        cpu_change, cuda_change = cpu_weights - before[name], weights_by_device[1][name] - before[name]
        assert cpu_change.any() == cuda_change.any(), name
        if precision == "fp32":
            torch.testing.assert_close(cuda_change, cpu_change, rtol=1e-2, atol=1e-5, msg=name)


@pytest.mark.parametrize("failing_capture", [1, 2])
def test_a_step_that_cannot_be_recorded_runs_as_it_is(
    failing_capture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host asks for a number while the whenth shape is recorded; what follows must go on as if it never had."""
    text = tmp_path / "text.tsv"
    rows = "".join(f"{'word ' * (n % 50)}{n}\t{'odd' if n % 2 else 'even'}\n" for n in range(3_000))
    text.write_text(rows, encoding="utf-8")
    steps = {"batch_size": 4, "max_steps": 30, "eval_every": 15, "checkpoint_every": 10, "log_every": 5}
    original_optimize, captures = TrainStep.optimize, [0]

    def sync_during_capture(self: TrainStep, *arguments: Any) -> None:
        original_optimize(self, *arguments)
        if torch.cuda.is_current_stream_capturing():
            captures[0] += 1
            if captures[0] >= failing_capture:
                self.losses.sum().item()

    def train_run(name: str, **kwargs: Any) -> Path:
        captures[0] = 0
        result = train(
            "classify", data=str(text), out=str(tmp_path / name), device="cuda", quiet=True, seed=1,
            train=steps, tokenizer={"kind": "word"}, **{"model": MODEL} | kwargs,
        )  # fmt: skip
        return result.path

    monkeypatch.setattr(TrainStep, "optimize", sync_during_capture)
    failed = train_run("failed")
    assert "cannot be captured" in (failed / "metrics.jsonl").read_text(encoding="utf-8")
    repeated = train_run("again")
    weights = [load_file(path / "model.safetensors") for path in (failed, repeated)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0]), "it repeats to the same bits"
    monkeypatch.setattr(TrainStep, "optimize", original_optimize)
    recorded = train_run("recorded", model=MODEL | {"dropout": 0.0})
    monkeypatch.setattr(TrainStep, "optimize", sync_during_capture)
    unrecorded = train_run("unrecorded", model=MODEL | {"dropout": 0.0})
    weights = [load_file(path / "model.safetensors") for path in (recorded, unrecorded)]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_run_opened_on_cuda_answers_in_fp32_and_closely_in_bf16(task: Any, tmp_path: Path) -> None:
    data = {"data": write_pairs(tmp_path / "pairs.tsv")} if task == "translate" else {}
    path = train(
        task, out=str(tmp_path / "run"), device="cuda", quiet=True, train={"max_steps": 5}, model=MODEL, **data
    ).path
    bf16_run, fp32_run = load(path, device="cuda", precision="bf16"), load(path, device="cuda")
    assert (bf16_run.precision, fp32_run.precision) == ("bf16", "fp32")
    assert {parameter.dtype for parameter in bf16_run.task.model.parameters()} == {torch.bfloat16}
    decode_settings = {"max_new_tokens": 4}
    assert bf16_run.evaluate(**decode_settings)["loss"] == pytest.approx(
        fp32_run.evaluate(**decode_settings)["loss"], rel=0.02
    )
    with pytest.raises(ConfigError, match="int8 is for the CPU"):
        load(path, device="cuda", precision="int8")


# ------------------------------------------------------------------------------------------ FlexAttention

DEVICE = "cuda"
HEADS, WIDTH = 4, 32


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    """Without TF32: what differs is then a mistake and not rounding."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    yield
    torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class AttentionCase:
    """What a long text may read, and how it matches."""

    seq_len: int = 1024
    causal: bool = True
    window_size: int = -1
    padded: bool = False
    lengths: tuple[int, ...] = ()
    positions: str = "none"
    score: str = "scaled_dot"
    kv_heads: int = HEADS

    @property
    def batch_size(self) -> int:
        return 1 if self.lengths else 2

    def build_mask(self) -> AttentionMask:
        mask = (causal_mask if self.causal else full_mask) & window_mask(self.window_size)
        if self.padded:  # on the right of one row, on the left of the other
            positions = torch.arange(self.seq_len, device=DEVICE)
            mask = mask & PaddingMask(torch.stack([positions < self.seq_len - 300, positions >= 150]))
        return mask & PackedLayout(self.lengths).mask if self.lengths else mask

    def build_scorer(self) -> ScoreFunction:
        config = ModelConfig(
            d_model=HEADS * WIDTH,
            n_heads=HEADS,
            positions=self.positions,
            attention_score=self.score,
            n_kv_heads=self.kv_heads,
        )
        scorer = ScoreFunction(
            SCORES[self.score](config), build_relative_position(config, self.seq_len, causal=self.causal)
        )
        for parameter in scorer.parameters():
            nn.init.normal_(parameter, std=0.5)
        return scorer.to(DEVICE)

    def inputs(self, dtype: torch.dtype) -> list[Tensor]:
        heads = (HEADS, self.kv_heads, self.kv_heads)
        samples = [torch.randn(self.batch_size, n, self.seq_len, WIDTH, device=DEVICE) for n in heads]
        return [x.to(dtype).requires_grad_() for x in samples]


# Each kind is compiled anew, which takes seconds: all in float32, where an error cannot hide, and some in bf16.
BF16_CASES = ("causal window", "t5 both ways, padded")
FLEX_CASES = {
    "causal window": AttentionCase(window_size=128),
    "window": AttentionCase(causal=False, window_size=100),
    "causal window, padded": AttentionCase(window_size=128, padded=True),
    "alibi": AttentionCase(window_size=128, positions="alibi"),
    "t5": AttentionCase(window_size=128, positions="t5"),
    "t5 both ways, padded": AttentionCase(causal=False, window_size=100, positions="t5", padded=True),
    "cosine": AttentionCase(window_size=128, score="cosine"),
    "two heads a key": AttentionCase(window_size=128, kv_heads=2),
    "all heads one key, t5": AttentionCase(window_size=128, kv_heads=1, positions="t5"),
    "one row, packed": AttentionCase(seq_len=1024, window_size=128, lengths=(1024,)),
}
LENGTHS = (300, 700, 24, 1000, 24)
PACKED_CASES = {
    "causal": AttentionCase(seq_len=2048, lengths=LENGTHS),
    "both ways": AttentionCase(seq_len=2048, causal=False, lengths=LENGTHS),
    "causal window": AttentionCase(seq_len=2048, window_size=100, lengths=LENGTHS),
    "window, two heads a key": AttentionCase(
        seq_len=2048, causal=False, window_size=100, lengths=LENGTHS, kv_heads=2
    ),
    "cosine": AttentionCase(seq_len=2048, lengths=LENGTHS, score="cosine"),
    "t5": AttentionCase(seq_len=2048, window_size=100, lengths=LENGTHS, positions="t5", kv_heads=2),
    "alibi": AttentionCase(seq_len=2048, lengths=LENGTHS, positions="alibi"),
    "rows that are no multiple of anything": AttentionCase(seq_len=1237, lengths=(1, 600, 3, 633)),
}


def run_kernel(
    kernel: AttentionKernel, inputs: list[Tensor], mask: AttentionMask, scorer: ScoreFunction, cotangent: Tensor
) -> list[Tensor]:
    """The answer, and the gradients of q, k, v and of what is learned."""
    y = kernel(*inputs, mask, scorer, 0.0)
    leaves = [*inputs, *scorer.parameters()]
    return [y, *torch.autograd.grad(y, leaves, cotangent.to(y.dtype))]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """How far from what it should be, as a share of its size."""
    return float((actual.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())


MAX_RELATIVE_ERROR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def assert_matches_reference(case: AttentionCase, kernels: list[AttentionKernel], dtype: torch.dtype) -> None:
    scorer, inputs = case.build_scorer(), case.inputs(dtype)
    cotangent = torch.randn_like(inputs[0], dtype=torch.float32)
    float64_inputs = [x.detach().double().requires_grad_() for x in inputs]
    expected_outputs = run_kernel(naive_attention, float64_inputs, case.build_mask(), scorer.double(), cotangent)
    scorer.float()
    for kernel in kernels:
        actual_outputs = run_kernel(kernel, inputs, case.build_mask(), scorer, cotangent)
        assert actual_outputs[0].dtype == dtype
        for name, actual, expected in zip("yqkv", actual_outputs, expected_outputs, strict=False):
            assert relative_error(actual, expected) < MAX_RELATIVE_ERROR[dtype], name
        # Sums over all pairs, most of which cancel.
        for actual, expected in zip(actual_outputs[4:], expected_outputs[4:], strict=True):
            assert relative_error(actual, expected) < (1e-3 if dtype is torch.float32 else 5e-2)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in FLEX_CASES), *((name, torch.bfloat16) for name in BF16_CASES)],
)
def test_flex_attention_equals_the_formula_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    case = FLEX_CASES[name]
    q, k, _ = case.inputs(dtype)
    assert select_kernel(q, k, case.build_mask(), case.build_scorer(), 0.0) is FLEX
    assert_matches_reference(case, [flex_attention_kernel, dispatch_attention], dtype)


@pytest.mark.parametrize("dtype", MAX_RELATIVE_ERROR)
@pytest.mark.parametrize("name", PACKED_CASES)
def test_packed_rows_equal_the_formula_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    case = PACKED_CASES[name]
    q, k, _ = case.inputs(dtype)
    flash_supports_it = dtype is torch.bfloat16 and case.positions == "none"
    assert (select_kernel(q, k, case.build_mask(), case.build_scorer(), 0.0) is VARLEN) is flash_supports_it
    assert_matches_reference(case, [dispatch_attention, tiled_sdpa_attention], dtype)


@pytest.mark.parametrize(
    ("positions", "dtype"),
    [("none", torch.float32), ("none", torch.bfloat16), ("t5", torch.float32)],
)
@pytest.mark.parametrize("kernel", [flex_attention_kernel, sdpa_attention])
def test_a_query_that_may_read_nothing_gets_zeros_and_finite_gradients(
    kernel: AttentionKernel, positions: str, dtype: torch.dtype
) -> None:
    case = AttentionCase(positions=positions)
    inputs, keep = case.inputs(dtype), torch.ones(2, case.seq_len, dtype=torch.bool, device=DEVICE)
    keep[0], keep[1, :500] = False, False
    mask = causal_mask & window_mask(64) & PaddingMask(keep)
    y, *grads = run_kernel(kernel, inputs, mask, case.build_scorer(), torch.ones_like(inputs[0]))
    assert (y[0] == 0).all()
    assert (y[1, :, :500] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[0] == 0).all() for grad in grads[:3])


def test_what_flex_attention_cannot_take_is_fused_on_cuda_too() -> None:
    scorer, mask = AttentionCase().build_scorer(), causal_mask & window_mask(64)
    for t, dropout in ((1024, 0.1), (1023, 0.0), (512, 0.0)):
        q, k, v = AttentionCase(seq_len=t).inputs(torch.float32)
        assert select_kernel(q, k, mask, scorer, dropout).kernel is sdpa_attention
        if not dropout:
            actual, expected = (
                kernel(q, k, v, mask, scorer, 0.0) for kernel in (dispatch_attention, naive_attention)
            )
            assert relative_error(actual, expected) < 2e-5


# ------------------------------------------------------------------------------------------ whole models

LONG = DataSizes(vocab_size=64, max_len=2048)
WINDOWED = ModelConfig(d_model=128, d_ff=256, n_layers=2, n_heads=4, n_kv_heads=2, dropout=0.0, window=128)


def with_kernel(model: Decoder, kernel: AttentionKernel) -> Decoder:
    for block in model.blocks:
        block.attn.kernel = kernel
    return model


def train_losses(model: Decoder, batches: list[tuple[Tensor, Tensor | None]]) -> list[float]:
    optimizer, loss_values = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for tokens, keep in batches:
        logits = model(tokens[:, :-1], None if keep is None else keep[:, :-1])
        target_mask = slice(None) if keep is None else keep[:, 1:]
        loss = F.cross_entropy(logits[target_mask].flatten(0, -2), tokens[:, 1:][target_mask].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_values.append(loss.item())
    return loss_values


def padded_batch(*lengths: int) -> tuple[Tensor, Tensor]:
    keep = torch.arange(2049, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
    return torch.randint(64, keep.shape, device=DEVICE), keep


@pytest.mark.parametrize("positions", ["learned", "t5"])
def test_a_windowed_decoder_trains_as_with_the_formula(positions: str) -> None:
    model = use_fast_kernels(Decoder(replace(WINDOWED, positions=positions), LONG)).to(DEVICE)
    reference = use_fast_kernels(Decoder(replace(WINDOWED, positions=positions), LONG)).to(DEVICE)
    reference.load_state_dict(model.state_dict())
    batches = [(torch.randint(64, (2, 2049), device=DEVICE), None) for _ in range(3)]
    batches += [padded_batch(2049, 1500), padded_batch(900, 2000)]
    actual, expected = train_losses(model, batches), train_losses(with_kernel(reference, naive_attention), batches)
    assert actual == pytest.approx(expected, rel=1e-4)


def test_another_padding_of_the_same_shape_is_not_compiled_again() -> None:
    model = use_fast_kernels(Decoder(replace(WINDOWED, positions="t5"), LONG)).to(DEVICE)
    train_losses(model, [padded_batch(2049, 1500)])
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    train_losses(model, [padded_batch(*lengths) for lengths in ((2049, 3), (1000, 1000), (2049, 2049))])
    assert counters["stats"]["unique_graphs"] == compiled


def test_layers_of_one_shape_share_one_compilation() -> None:
    torch._dynamo.reset()
    counts: list[Any] = []
    for layers in (1, 4):
        model = use_fast_kernels(Decoder(replace(WINDOWED, positions="t5", n_layers=layers), LONG)).to(DEVICE)
        before = counters["stats"]["unique_graphs"]
        train_losses(model, [padded_batch(2049, 1500)])
        counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[0] > 0
    assert counts[1] == 0


def test_memory_of_a_window_on_cuda_grows_with_the_text_and_not_with_its_square() -> None:
    peaks = []
    for t in (2048, 4096):
        case = AttentionCase(seq_len=t, window_size=128)
        inputs, scorer = case.inputs(torch.bfloat16), case.build_scorer()
        for _ in range(2):  # the first time compiles
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            dispatch_attention(*inputs, case.build_mask(), scorer, 0.0).sum().backward()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
        peaks.append(peak)
    assert peaks[1] < 2.6 * peaks[0]  # a square would make it four times as much


def capture_graph(step: Any) -> torch.cuda.CUDAGraph:
    """A step recorded as a graph after a few runs on the side, as a trainer would."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize("name", ["window", "window, padded", "packed"])
def test_a_model_with_windows_or_packed_rows_can_be_replayed_as_a_graph(name: str) -> None:
    torch.manual_seed(0)
    packed = name == "packed"
    config = ModelConfig(d_model=64, d_ff=96, n_layers=2, n_heads=2, dropout=0.0, window=-1 if packed else 64)
    model = use_fast_kernels(Decoder(config, DataSizes(vocab_size=50, max_len=1024))).to("cuda", torch.bfloat16)
    tokens = torch.randint(4, 50, (1, 1024), device="cuda")
    keep: Any = PackedLayout([300, 200, 400, 124]) if packed else None
    if name == "window, padded":
        keep = torch.arange(1024, device="cuda")[None] < 900

    def step() -> Tensor:
        model.zero_grad(set_to_none=False)
        loss = model(tokens, keep).float().square().mean()
        loss.backward()
        return loss

    step()
    graph = capture_graph(step)
    for _ in range(2):  # other tokens in the same place
        tokens.copy_(torch.randint(4, 50, (1, 1024), device="cuda"))
        graph.replay()
        graph_step = [parameter.grad.clone() for parameter in model.parameters()]
        step()
        for actual, expected in zip(graph_step, model.parameters(), strict=True):
            torch.testing.assert_close(actual, expected.grad, rtol=0.05, atol=1e-4)  # sums of halves, in any order


# ------------------------------------------------------------------------------------------ decoding by replay

PROMPTS = [[4, 5, 6, 7, 8], [9], [10, 4], [5] * 8, [6, 7, 8], [7], [8, 9, 10, 4, 5, 6], [4, 4], [10, 9, 8] * 8]
MAX_NEW_TOKENS = (9, 25, 3, 40, 14, 30, 6, 1, 20)
DECODE_SETTINGS = DecodeConfig(temperature=1.5, top_k=6, top_p=0.95, beam_size=3)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "window": 3, "n_kv_heads": 2},
    {"positions": "t5", "attention_score": "cosine"},
    {"positions": "relative"},
    {"positions": "alibi", "attention_score": "additive"},
]


def build_adapter(
    architecture: str, dtype: torch.dtype = torch.float32, **model_settings: Any
) -> DecoderAdapter | Seq2SeqAdapter:
    """A model whose weights are large enough that what it writes is not one token repeated."""
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=32, d_ff=64, n_layers=2, n_heads=4, dropout=0.0, tie_embeddings=False, **model_settings
    )
    sizes = DataSizes(vocab_size=11, max_len=24 if architecture == "decoder" else 64)
    model = (Decoder if architecture == "decoder" else Seq2Seq)(config, sizes)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    model = model.to(DEVICE, dtype).eval().requires_grad_(False)
    return DecoderAdapter(model, 24) if isinstance(model, Decoder) else Seq2SeqAdapter(model, 64, bos=2)


REQUESTS = [Request(prompt, MAX_NEW_TOKENS[row], seed=row) for row, prompt in enumerate(PROMPTS)]
CONSTRAINTS = TokenConstraints(eos=3, banned=(0, 1, 2))


def with_settings(settings: DecodeConfig) -> list[Request]:
    return [replace(request, decode=settings) for request in REQUESTS]


def decode(
    adapter: DecoderAdapter | Seq2SeqAdapter, requests: list[Request], *, use_cuda_graphs: bool
) -> list[list[int]]:
    outputs: dict[int, list[int]] = {}
    beam = beam_settings(requests[0].decode)
    with Scheduler(adapter, CONSTRAINTS, beam, use_cuda_graphs=use_cuda_graphs) as scheduler:
        for request in requests:
            scheduler.submit(request)
        while scheduler.n_unfinished:
            outputs |= scheduler.step()
    return [outputs[row] for row in range(len(requests))]


def run_graph_search(adapter: DecoderAdapter | Seq2SeqAdapter, strategy: str) -> list[list[int]]:
    return generate(adapter, with_settings(replace(DECODE_SETTINGS, strategy=strategy)), CONSTRAINTS)


def run_eager_search(adapter: DecoderAdapter | Seq2SeqAdapter, strategy: str) -> list[list[int]]:
    """One text after the other, without a graph."""
    requests = with_settings(replace(DECODE_SETTINGS, strategy=strategy))
    return [decode(adapter, [request], use_cuda_graphs=False)[0] for request in requests]


@pytest.mark.parametrize("model_settings", VARIANTS)
@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("architecture", ["decoder", "seq2seq"])
def test_replayed_steps_write_what_single_ones_write(
    architecture: str,
    strategy: str,
    model_settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter = build_adapter(architecture, **model_settings)
    expected = run_eager_search(adapter, strategy)
    assert len({tuple(tokens) for tokens in expected}) > 1  # there is something to compare
    assert run_graph_search(adapter, strategy) == expected
    monkeypatch.setattr(graph_backend, "MAX_GRAPH_HYPOTHESES", 2 * 3)  # few slots: rows wait until others are done
    assert run_graph_search(adapter, strategy) == expected
    assert not caplog.records  # every step was recorded
    slot_sets = graph_backend.POOL.idle(adapter.model)
    assert slot_sets
    assert all(graph is not None for slots in slot_sets for graph in slots.graphs.values())


def test_rows_with_different_settings_share_replayed_steps(caplog: pytest.LogCaptureFixture) -> None:
    adapter = build_adapter("decoder")
    variants: list[dict[str, Any]] = [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_k": 9}, {"top_p": 0.8}]
    settings = [DecodeConfig(strategy="sample" if variant else "greedy", **variant) for variant in variants]
    requests = [
        replace(request, decode=settings[row % len(settings)], n_logprobs=row % 2 * 4)
        for row, request in enumerate(REQUESTS)
    ]
    expected = [decode(adapter, [request], use_cuda_graphs=False)[0] for request in requests]
    assert decode(adapter, requests, use_cuda_graphs=True) == expected
    assert [decode(adapter, [request], use_cuda_graphs=True)[0] for request in requests] == expected
    assert not caplog.records  # every mode was recorded


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_rows_move_to_larger_slots_while_they_are_decoded(strategy: str) -> None:
    adapter = build_adapter("seq2seq")
    settings = replace(DECODE_SETTINGS, strategy=strategy)
    requests = [Request([4, 5, 6], 40, 0, settings), Request([7, 8, 9] * 8, 50, 1, settings)]
    outputs: dict[int, list[int]] = {}
    with Scheduler(adapter, CONSTRAINTS, beam_settings(settings), max_rows=2, use_cuda_graphs=True) as scheduler:
        for request in requests:
            scheduler.submit(request)
            outputs |= scheduler.step()
        while scheduler.n_unfinished:
            outputs |= scheduler.step()
    expected = [decode(adapter, [request], use_cuda_graphs=False)[0] for request in requests]
    assert [outputs[0], outputs[1]] == expected


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_the_next_call_replays_the_same_graph_with_the_weights_of_then(strategy: str) -> None:
    adapter = build_adapter("decoder")
    first = run_graph_search(adapter, strategy)
    graphs = [slots.graphs for slots in graph_backend.POOL.idle(adapter.model)]
    assert run_graph_search(adapter, strategy) == first
    with torch.no_grad():
        for parameter in adapter.model.parameters():
            parameter.mul_(-0.9)
    assert run_graph_search(adapter, strategy) == run_eager_search(adapter, strategy)
    assert [slots.graphs for slots in graph_backend.POOL.idle(adapter.model)] == graphs


def test_eight_threads_with_different_settings_decode_as_one_thread_does(caplog: pytest.LogCaptureFixture) -> None:
    """Each thread records graphs of its own while the others decode, one of them with a model that records none."""
    torch.manual_seed(0)
    recurrent = build_decoder(ModelConfig(kind="gru", d_model=32, n_layers=2), DataSizes(vocab_size=11, max_len=24))
    eager_adapter = build_decoder_adapter(recurrent.to(DEVICE).eval(), 24)
    settings = [
        replace(DECODE_SETTINGS, strategy=strategy, temperature=temperature, beam_size=beam_size)
        for strategy, temperature, beam_size in (
            *(("greedy", 1.0, 1), ("greedy", 1.0, 1), ("sample", 0.7, 1), ("sample", 0.7, 1)),
            *(("sample", 1.3, 1), ("beam", 1.0, 2), ("beam", 1.0, 3), ("sample", 1.0, 1)),
        )
    ]

    def decode_settings(adapter: Any, index: int) -> list[list[int]]:
        adapter = eager_adapter if index == 7 else adapter
        return generate(adapter, with_settings(settings[index]), CONSTRAINTS)

    expected = [decode_settings(build_adapter("decoder"), index) for index in range(8)]
    for _ in range(3):
        adapter = build_adapter("decoder")
        with ThreadPoolExecutor(8) as executor:
            outputs = list(executor.map(lambda index: decode_settings(adapter, index), [*range(8)] * 3))  # noqa: B023
        assert outputs == expected * 3
    assert not caplog.records  # every graph was recorded


def test_a_model_in_half_precision_is_replayed_too() -> None:
    adapter = build_adapter("decoder", torch.bfloat16)
    outputs = run_graph_search(adapter, "greedy")
    assert any(outputs)
    assert all(len(tokens) <= limit for tokens, limit in zip(outputs, MAX_NEW_TOKENS, strict=True))
    (slots,) = graph_backend.POOL.idle(adapter.model)
    assert slots.kv_buffer.dtype is torch.bfloat16
    assert slots.logits.dtype is torch.float32
    assert slots.logits.isfinite().all()


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_study_on_cuda_trains_scores_and_goes_on(task: str, tmp_path: Path) -> None:
    test_data = {
        "classify": "builtin:reviews/test",
        "generate": "builtin:stories/test",
        "translate": write_pairs(tmp_path / "test.tsv", ("four", "five", "one")),
    }
    study: dict[str, Any] = {
        "task": task,
        "common": {"model": MODEL, "train": {"max_steps": 6, "eval_every": 3, "batch_size": 8}, "data.max_len": 32},
        "variants": {"plain": {}, "narrow": {"model.window": 4}},
        "tests": {"test": test_data[task]},
    }
    if task == "translate":
        study["common"]["data.train"] = write_pairs(tmp_path / "pairs.tsv")
    studies = [compare(study, seeds=3, out=tmp_path / "out", device="cuda", quiet=True) for _ in range(2)]
    assert all(not result.failure for result in studies[0].runs)
    assert [result.metric_values for result in studies[0].runs] == [
        result.metric_values for result in studies[1].runs
    ]
    assert studies[0].comparisons[0].difference.pairs == 3


def test_an_estimator_answers_on_a_card_as_on_a_cpu() -> None:
    pytest.importorskip("sklearn")
    from triform.sklearn import TextVectorizer

    texts = [f"row {n} is {'good' if n % 2 else 'bad'}" + " indeed" * (n % 5) for n in range(40)]
    vectorizer = TextVectorizer(d_model=32, n_layers=2, n_heads=2, max_steps=5, device="cuda", random_state=0)
    on_cuda = vectorizer.fit(texts, [n % 2 for n in range(40)]).transform(texts)
    on_cpu = pickle.loads(pickle.dumps(vectorizer)).set_params(device="cpu").transform(texts)
    assert on_cuda.shape == on_cpu.shape == (40, 32)
    np.testing.assert_allclose(on_cuda, on_cpu, rtol=1e-3, atol=1e-3)  # of states whose size is about 1


RECURRENT = {"kind": "lstm", "d_model": 32, "n_layers": 2, "dropout": 0.2}


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_recurrent_model_learns_on_cuda_what_it_learns_on_the_cpu(task: Any, kind: str, tmp_path: Path) -> None:
    """Recorded or not: without dropout the weights after some steps are those of the CPU.

    By plain descent: Adam would make a whole step of a gradient that is nothing but rounding.
    """
    options: dict[str, Any] = {
        "max_steps": 8,
        "batch_size": 8,
        "eval_every": 8,
        "log_every": 1,
        "precision": "fp32",
    }
    options |= {"optimizer": "sgd", "lr": 0.1}
    model = RECURRENT | {"kind": kind, "dropout": 0.0}
    result = {
        device: train(task, model=model, train=options, out=str(tmp_path / device), device=device, quiet=True)
        for device in ("cpu", "cuda")
    }
    actual, expected = (load_file(result[device].path / "model.safetensors") for device in ("cuda", "cpu"))
    for name, weights in actual.items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-2, atol=1e-3)
    events = (result["cuda"].path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "cannot be captured" not in events


@pytest.mark.parametrize("task", ["generate", "translate"])
@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_a_recurrent_model_writes_on_cuda_what_it_writes_on_the_cpu(
    task: Any, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 throughout: cuDNN's own default, tf32, is enough to turn a near tie of a young model."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    options = {"max_steps": 5, "batch_size": 8}
    run = train(task, model=RECURRENT, train=options, out=str(tmp_path / "run"), device="cpu", quiet=True)
    texts = ["one", "two and three", "the"] if task == "translate" else ["the ", "a", "of the "]
    settings: dict[str, Any] = {"strategy": strategy, "max_new_tokens": 12}
    on_cuda = load(run.path, device="cuda", precision="fp32").predict(texts, **settings)
    on_cpu = load(run.path, device="cpu", precision="fp32").predict(texts, **settings)
    assert [result.output for result in on_cuda] == [result.output for result in on_cpu]


def test_what_speaks_for_a_label_is_told_of_a_recurrent_model_on_cuda_too(tmp_path: Path) -> None:
    options = {"max_steps": 5, "batch_size": 8}
    train("classify", model=RECURRENT, train=options, out=str(tmp_path / "run"), device="cpu", quiet=True)
    explanations = [load(tmp_path / "run", device=device).explain("a good film") for device in ("cuda", "cpu")]
    values = [item.attributions[0].values for item in explanations]
    np.testing.assert_allclose(*values, rtol=1e-2, atol=1e-4)
