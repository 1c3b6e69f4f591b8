"""What only a GPU can show. Skipped elsewhere; the logic itself is tested on the CPU."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
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

from triform.config import DecodeConfig, ModelConfig, Sizes
from triform.decode import replay as replaying
from triform.decode.beam import Ending
from triform.decode.choose import Sample, best
from triform.decode.forms import DecoderForm, Seq2SeqForm
from triform.decode.search import beam_search, run_search, write
from triform.decode.stepper import Cached
from triform.errors import ConfigError
from triform.launch import train
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.choice import FLASH, FLEX, automatic, choose
from triform.nn.flex import flex
from triform.nn.kernels import Kernel, Matching, explicit, fused
from triform.nn.masks import Rule, causal, everything, real, window
from triform.nn.positions import relation
from triform.nn.rows import Packed
from triform.nn.scores import SCORES
from triform.run import load
from triform.seeds import train_seeds
from triform.study.runner import compare
from triform.training.learner import Learner
from triform.training.population import LIMITS, Limit
from triform.training.stack import Stack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MODEL = {"d_model": 64, "n_layers": 2, "n_heads": 2, "dropout": 0.1}


def few_pairs(path: Path, words: tuple[str, ...] = ("one", "two", "three", "four")) -> str:
    """Sentences to translate, so few that an evaluation is short; the other tasks have their built-in sets."""
    pairs = [(a, b, c) for a in words for b in words for c in words]
    path.write_text("".join(f"{' '.join(pair)}\t{' '.join(pair).upper()}\n" for pair in pairs), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_padded_on_the_left_stay_finite_and_decode_as_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=64, d_ff=128, n_layers=3, n_heads=4)
    model = Decoder(config, Sizes(vocab_size=50, max_len=64)).to("cuda", dtype).eval()
    prompts = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22]]

    def continued(rows: list[list[int]]) -> list[list[int]]:
        ending = Ending(eos=3, limits=(20,) * len(rows), banned=(0, 1, 2))
        return write(Cached(DecoderForm(model, 64), rows), best, ending)

    stepper = Cached(DecoderForm(model, 64), prompts)
    assert stepper.start().isfinite().all()
    if dtype is torch.float32:
        assert continued(prompts) == [continued([prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_repeated_on_cuda_ends_with_the_same_bits(precision: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} says {n * 7919 % 9973}.\n" for n in range(20_000)), encoding="utf-8")
    settings = {"max_steps": 40, "batch_size": 8, "eval_every": 20, "checkpoint_every": 10, "precision": precision}

    def run(name: str, **more: object) -> Path:
        made = train(
            "generate", data=str(text), out=str(tmp_path / name), device="cuda", quiet=True, seed=1,
            train=settings, model=MODEL, tokenizer={"kind": "bpe"}, **{"data.max_len": 512}, **more,
        )  # fmt: skip
        return made.path

    one, other = run("one"), run("other")
    weights = [load_file(path / "model.safetensors") for path in (one, other)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_the_three_forms_train_and_answer_on_cuda(tmp_path: Path) -> None:
    for task, text in (("classify", "The soup was good."), ("generate", "The"), ("translate", "twenty-one")):
        made = train(task, out=str(tmp_path / task), device="cuda", quiet=True, train={"max_steps": 5}, model=MODEL)
        assert made.predict([text])[0].output
        assert made.evaluate()["loss"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("asked", [{"lora_rank": 4}, {"freeze": 1, "layer_decay": 0.5}], ids=["lora", "layers"])
def test_fine_tuning_recorded_on_cuda_learns_as_on_the_cpu(
    asked: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    short = {"max_len": 32, "train": "builtin:topics"}
    pace = {"max_steps": 12, "batch_size": 8, "eval_every": 12, "lr": 0.1, "optimizer": "sgd", "precision": "fp32"}
    still = {**MODEL, "dropout": 0.0}
    base = train("generate", data=short, model=still, train=pace, out=tmp_path / "base", quiet=True).path
    before, found = load_file(base / "model.safetensors"), []
    for device, kind in (("cpu", "fp32"), ("cuda", precision)):
        how = {**pace, **asked, "precision": kind}
        made = train("generate", data=short, base=base, train=how, out=tmp_path / device, device=device, quiet=True)
        found.append(load_file(made.path / "model.safetensors"))
    for name, wanted in found[0].items():
        moved, other = wanted - before[name], found[1][name] - before[name]
        assert moved.any() == other.any(), name
        if precision == "fp32":
            torch.testing.assert_close(other, moved, rtol=1e-2, atol=1e-5, msg=name)


@pytest.mark.parametrize("when", [1, 2])
def test_a_step_that_cannot_be_recorded_runs_as_it_is(
    when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host asks for a number while the whenth shape is recorded; what follows must go on as if it never had."""
    text = tmp_path / "text.tsv"
    rows = "".join(f"{'word ' * (n % 50)}{n}\t{'odd' if n % 2 else 'even'}\n" for n in range(3_000))
    text.write_text(rows, encoding="utf-8")
    steps = {"batch_size": 4, "max_steps": 30, "eval_every": 15, "checkpoint_every": 10, "log_every": 5}
    plain, captures = Learner.learn, [0]

    def asking(self: Learner, *arguments: Any) -> None:
        plain(self, *arguments)
        if torch.cuda.is_current_stream_capturing():
            captures[0] += 1
            if captures[0] >= when:
                self.losses.sum().item()

    def run(name: str, **more: Any) -> Path:
        captures[0] = 0
        made = train(
            "classify", data=str(text), out=str(tmp_path / name), device="cuda", quiet=True, seed=1,
            train=steps, tokenizer={"kind": "word"}, **{"model": MODEL} | more,
        )  # fmt: skip
        return made.path

    monkeypatch.setattr(Learner, "learn", asking)
    failed = run("failed")
    assert "cannot be recorded" in (failed / "metrics.jsonl").read_text(encoding="utf-8")
    again = run("again")
    weights = [load_file(path / "model.safetensors") for path in (failed, again)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0]), "it repeats to the same bits"
    monkeypatch.setattr(Learner, "learn", plain)
    recorded = run("recorded", model=MODEL | {"dropout": 0.0})
    monkeypatch.setattr(Learner, "learn", asking)
    unrecorded = run("unrecorded", model=MODEL | {"dropout": 0.0})
    weights = [load_file(path / "model.safetensors") for path in (recorded, unrecorded)]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=2e-3, atol=2e-4)


# ------------------------------------------------------------------------------------------ populations


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[Stack]:
    """Every stack that is made; whatever the size, seeds are trained together."""
    made: list[Stack] = []
    begin = Stack.__init__

    def watched(self: Stack, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(Stack, "__init__", watched)
    monkeypatch.setitem(LIMITS, "cuda", Limit(1e99, 1e99))
    return made


@pytest.mark.parametrize(
    ("task", "positions"),
    [("classify", "learned"), ("classify", "t5"), ("generate", "t5"), ("translate", "learned")],
)
def test_members_of_a_recorded_population_equal_the_same_seeds_alone(
    task: Any, positions: str, tmp_path: Path, stacks: list[Stack]
) -> None:
    how: dict[str, Any] = {
        "device": "cuda", "quiet": True, "model": MODEL | {"dropout": 0.0, "positions": positions, "window": 8},
        "train": {"max_steps": 25, "optimizer": "sgd", "lr": 0.1, "precision": "fp32", "log_every": 1},
    }  # fmt: skip
    if task == "translate":
        how["data"] = few_pairs(tmp_path / "pairs.tsv")
    made = train_seeds(task, 3, out=tmp_path / "seeds", **how)
    assert len(stacks) == 1
    assert stacks[0].replay.graphs, "the step was recorded"
    assert stacks[0].replay.recording, "and every shape could be"
    alone = train(task, seed=1, out=tmp_path / "alone", **how)
    ours, theirs = (load_file(path / "model.safetensors") for path in (made.folders[1], alone.path))
    for name in ours:
        assert apart(ours[name], theirs[name]) < 1e-3 or float((ours[name] - theirs[name]).norm()) < 1e-5, name


def test_a_population_with_adam_and_half_precision_learns_as_alone(tmp_path: Path, stacks: list[Stack]) -> None:
    how = {"device": "cuda", "quiet": True, "model": MODEL, "train": {"max_steps": 60, "precision": "bf16"}}
    made = train_seeds("generate", 4, out=tmp_path / "seeds", **how)
    assert stacks[0].replay.recording
    assert stacks[0].replay.graphs
    alone = train("generate", seed=2, out=tmp_path / "alone", **how)
    best = alone.progress()["best"]
    assert isinstance(best, dict)
    assert made.values[2] == pytest.approx(best["perplexity"], rel=0.05)


def test_dropout_of_a_population_differs_with_every_replay_and_member(tmp_path: Path, stacks: list[Stack]) -> None:
    how = {"device": "cuda", "quiet": True, "model": MODEL | {"dropout": 0.5}}
    train_seeds("generate", 2, out=tmp_path / "seeds", train={"max_steps": 6}, **how)
    stack = stacks[0]
    plan = [stack.resident.plan(np.arange(stack.learners[0].config.batch_size))]
    seen = []
    for _ in range(3):
        stack.step([plan, plan], [0.0, 0.0], [0, 0])
        stack.look()
        seen += stack.seen_losses[:, 0].tolist()
    assert len(set(seen)) == 6
    assert stack.weights.isfinite().all()


def test_members_that_stop_early_leave_a_smaller_stack_on_cuda(tmp_path: Path, stacks: list[Stack]) -> None:
    pace = {"max_steps": 300, "eval_every": 2, "patience": 1, "lr": 0.1, "precision": "fp32"}
    made = train_seeds("classify", 6, out=tmp_path / "seeds", device="cuda", quiet=True, model=MODEL, train=pace)
    assert len(stacks) > 1
    assert all(run.evaluate()["loss"] > 0 for run in made.runs(device="cuda"))


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_run_opened_on_cuda_answers_in_fp32_and_closely_in_bf16(task: Any, tmp_path: Path) -> None:
    data = {"data": few_pairs(tmp_path / "pairs.tsv")} if task == "translate" else {}
    path = train(
        task, out=str(tmp_path / "run"), device="cuda", quiet=True, train={"max_steps": 5}, model=MODEL, **data
    ).path
    opened, exact = load(path, device="cuda", precision="bf16"), load(path, device="cuda")
    assert (opened.precision, exact.precision) == ("bf16", "fp32")
    assert {parameter.dtype for parameter in opened.task.model.parameters()} == {torch.bfloat16}
    short = {"max_new_tokens": 4}
    assert opened.evaluate(**short)["loss"] == pytest.approx(exact.evaluate(**short)["loss"], rel=0.02)
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
class Sight:
    """What a long text may read, and how it matches."""

    t: int = 1024
    causal: bool = True
    width: int = -1
    padded: bool = False
    lengths: tuple[int, ...] = ()
    positions: str = "none"
    score: str = "scaled_dot"
    kv_heads: int = HEADS

    @property
    def rows(self) -> int:
        return 1 if self.lengths else 2

    def rule(self) -> Rule:
        rule = (causal if self.causal else everything) & window(self.width)
        if self.padded:  # on the right of one row, on the left of the other
            places = torch.arange(self.t, device=DEVICE)
            rule = rule & real(torch.stack([places < self.t - 300, places >= 150]))
        return rule & Packed(self.lengths).rule if self.lengths else rule

    def matching(self) -> Matching:
        config = ModelConfig(
            d_model=HEADS * WIDTH,
            n_heads=HEADS,
            positions=self.positions,
            score=self.score,
            n_kv_heads=self.kv_heads,
        )
        made = Matching(SCORES[self.score](config), relation(config, self.t, causal=self.causal))
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.5)
        return made.to(DEVICE)

    def inputs(self, dtype: torch.dtype) -> list[Tensor]:
        heads = (HEADS, self.kv_heads, self.kv_heads)
        drawn = [torch.randn(self.rows, n, self.t, WIDTH, device=DEVICE) for n in heads]
        return [x.to(dtype).requires_grad_() for x in drawn]


# Each kind is compiled anew, which takes seconds: all in float32, where an error cannot hide, and some in bf16.
IN_BF16 = ("causal window", "t5 both ways, padded")
SIGHTS = {
    "causal window": Sight(width=128),
    "window": Sight(causal=False, width=100),
    "causal window, padded": Sight(width=128, padded=True),
    "alibi": Sight(width=128, positions="alibi"),
    "t5": Sight(width=128, positions="t5"),
    "t5 both ways, padded": Sight(causal=False, width=100, positions="t5", padded=True),
    "cosine": Sight(width=128, score="cosine"),
    "two heads a key": Sight(width=128, kv_heads=2),
    "all heads one key, t5": Sight(width=128, kv_heads=1, positions="t5"),
    "one row, packed": Sight(t=1024, width=128, lengths=(1024,)),
}
LENGTHS = (300, 700, 24, 1000, 24)
PACKED = {
    "causal": Sight(t=2048, lengths=LENGTHS),
    "both ways": Sight(t=2048, causal=False, lengths=LENGTHS),
    "causal window": Sight(t=2048, width=100, lengths=LENGTHS),
    "window, two heads a key": Sight(t=2048, causal=False, width=100, lengths=LENGTHS, kv_heads=2),
    "cosine": Sight(t=2048, lengths=LENGTHS, score="cosine"),
    "t5": Sight(t=2048, width=100, lengths=LENGTHS, positions="t5", kv_heads=2),
    "alibi": Sight(t=2048, lengths=LENGTHS, positions="alibi"),
    "rows that are no multiple of anything": Sight(t=1237, lengths=(1, 600, 3, 633)),
}


def outcome(kernel: Kernel, inputs: list[Tensor], rule: Rule, made: Matching, cotangent: Tensor) -> list[Tensor]:
    """The answer, and the gradients of q, k, v and of what is learned."""
    y = kernel(*inputs, rule, made, 0.0)
    leaves = [*inputs, *made.parameters()]
    return [y, *torch.autograd.grad(y, leaves, cotangent.to(y.dtype))]


def apart(ours: Tensor, theirs: Tensor) -> float:
    """How far from what it should be, as a share of its size."""
    return float((ours.detach().double() - theirs.detach().double()).norm() / theirs.detach().double().norm())


MOST_APART = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def same_as_the_formula(sight: Sight, kernels: list[Kernel], dtype: torch.dtype) -> None:
    made, inputs = sight.matching(), sight.inputs(dtype)
    cotangent = torch.randn_like(inputs[0], dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = outcome(explicit, exact, sight.rule(), made.double(), cotangent)
    made.float()
    for kernel in kernels:
        got = outcome(kernel, inputs, sight.rule(), made, cotangent)
        assert got[0].dtype == dtype
        for name, ours, theirs in zip("yqkv", got, wanted, strict=False):
            assert apart(ours, theirs) < MOST_APART[dtype], name
        for ours, theirs in zip(got[4:], wanted[4:], strict=True):  # sums over all pairs, most of which cancel
            assert apart(ours, theirs) < (1e-3 if dtype is torch.float32 else 5e-2)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in SIGHTS), *((name, torch.bfloat16) for name in IN_BF16)]
)
def test_flex_attention_equals_the_formula_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    sight = SIGHTS[name]
    q, k, _ = sight.inputs(dtype)
    assert choose(q, k, sight.rule(), sight.matching(), 0.0) is FLEX
    same_as_the_formula(sight, [flex, automatic], dtype)


@pytest.mark.parametrize("dtype", MOST_APART)
@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_equal_the_formula_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    sight = PACKED[name]
    q, k, _ = sight.inputs(dtype)
    flash_takes_it = dtype is torch.bfloat16 and sight.positions == "none"
    assert (choose(q, k, sight.rule(), sight.matching(), 0.0) is FLASH) is flash_takes_it
    same_as_the_formula(sight, [automatic, fused], dtype)


@pytest.mark.parametrize(
    ("positions", "dtype"),
    [("none", torch.float32), ("none", torch.bfloat16), ("t5", torch.float32)],
)
@pytest.mark.parametrize("kernel", [flex, fused])
def test_a_query_that_may_read_nothing_gets_zeros_and_finite_gradients(
    kernel: Kernel, positions: str, dtype: torch.dtype
) -> None:
    sight = Sight(positions=positions)
    inputs, keep = sight.inputs(dtype), torch.ones(2, sight.t, dtype=torch.bool, device=DEVICE)
    keep[0], keep[1, :500] = False, False
    rule = causal & window(64) & real(keep)
    y, *grads = outcome(kernel, inputs, rule, sight.matching(), torch.ones_like(inputs[0]))
    assert (y[0] == 0).all()
    assert (y[1, :, :500] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[0] == 0).all() for grad in grads[:3])


def test_what_flex_attention_cannot_take_is_fused_on_cuda_too() -> None:
    made, rule = Sight().matching(), causal & window(64)
    for t, dropout in ((1024, 0.1), (1023, 0.0), (512, 0.0)):
        q, k, v = Sight(t=t).inputs(torch.float32)
        assert choose(q, k, rule, made, dropout).kernel is fused
        if not dropout:
            ours, theirs = (kernel(q, k, v, rule, made, 0.0) for kernel in (automatic, explicit))
            assert apart(ours, theirs) < 2e-5


# ------------------------------------------------------------------------------------------ whole models

LONG = Sizes(vocab_size=64, max_len=2048)
WINDOWED = ModelConfig(d_model=128, d_ff=256, n_layers=2, n_heads=4, n_kv_heads=2, dropout=0.0, window=128)


def with_kernel(model: Decoder, kernel: Kernel) -> Decoder:
    for block in model.blocks:
        block.attention.kernel = kernel
    return model


def losses(model: Decoder, batches: list[tuple[Tensor, Tensor | None]]) -> list[float]:
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for tokens, keep in batches:
        logits = model(tokens[:, :-1], None if keep is None else keep[:, :-1])
        hit = slice(None) if keep is None else keep[:, 1:]
        loss = F.cross_entropy(logits[hit].flatten(0, -2), tokens[:, 1:][hit].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def padded_batch(*lengths: int) -> tuple[Tensor, Tensor]:
    keep = torch.arange(2049, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
    return torch.randint(64, keep.shape, device=DEVICE), keep


@pytest.mark.parametrize("positions", ["learned", "t5"])
def test_a_windowed_decoder_trains_as_with_the_formula(positions: str) -> None:
    ours = Decoder(replace(WINDOWED, positions=positions), LONG).to(DEVICE)
    theirs = Decoder(replace(WINDOWED, positions=positions), LONG).to(DEVICE)
    theirs.load_state_dict(ours.state_dict())
    batches = [(torch.randint(64, (2, 2049), device=DEVICE), None) for _ in range(3)]
    batches += [padded_batch(2049, 1500), padded_batch(900, 2000)]
    got, wanted = losses(ours, batches), losses(with_kernel(theirs, explicit), batches)
    assert got == pytest.approx(wanted, rel=1e-4)


def test_another_padding_of_the_same_shape_is_not_compiled_again() -> None:
    model = Decoder(replace(WINDOWED, positions="t5"), LONG).to(DEVICE)
    losses(model, [padded_batch(2049, 1500)])
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    losses(model, [padded_batch(*lengths) for lengths in ((2049, 3), (1000, 1000), (2049, 2049))])
    assert counters["stats"]["unique_graphs"] == compiled


def test_layers_of_one_shape_share_one_compilation() -> None:
    torch._dynamo.reset()
    counts: list[Any] = []
    for layers in (1, 4):
        model = Decoder(replace(WINDOWED, positions="t5", n_layers=layers), LONG).to(DEVICE)
        before = counters["stats"]["unique_graphs"]
        losses(model, [padded_batch(2049, 1500)])
        counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[0] > 0
    assert counts[1] == 0


def test_memory_of_a_window_on_cuda_grows_with_the_text_and_not_with_its_square() -> None:
    peaks = []
    for t in (2048, 4096):
        sight = Sight(t=t, width=128)
        inputs, made = sight.inputs(torch.bfloat16), sight.matching()
        for _ in range(2):  # the first time compiles
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            automatic(*inputs, sight.rule(), made, 0.0).sum().backward()
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_allocated() - before
        peaks.append(most)
    assert peaks[1] < 2.6 * peaks[0]  # a square would make it four times as much


def captured(step: Any) -> torch.cuda.CUDAGraph:
    """A step recorded as a graph after a few runs on the side, as a trainer would."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize("name", ["window", "window, padded", "packed"])
def test_a_model_with_windows_or_packed_rows_can_be_replayed_as_a_graph(name: str) -> None:
    torch.manual_seed(0)
    packed = name == "packed"
    config = ModelConfig(d_model=64, d_ff=96, n_layers=2, n_heads=2, dropout=0.0, window=-1 if packed else 64)
    model = Decoder(config, Sizes(vocab_size=50, max_len=1024)).to("cuda", torch.bfloat16)
    tokens = torch.randint(4, 50, (1, 1024), device="cuda")
    keep: Any = Packed([300, 200, 400, 124]) if packed else None
    if name == "window, padded":
        keep = torch.arange(1024, device="cuda")[None] < 900

    def step() -> Tensor:
        model.zero_grad(set_to_none=False)
        loss = model(tokens, keep).float().square().mean()
        loss.backward()
        return loss

    step()
    graph = captured(step)
    for _ in range(2):  # other tokens in the same place
        tokens.copy_(torch.randint(4, 50, (1, 1024), device="cuda"))
        graph.replay()
        replayed = [parameter.grad.clone() for parameter in model.parameters()]
        step()
        for ours, theirs in zip(replayed, model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.grad, rtol=0.05, atol=1e-4)  # sums of halves, in any order


# ------------------------------------------------------------------------------------------ decoding by replay

GIVEN = [[4, 5, 6, 7, 8], [9], [10, 4], [5] * 8, [6, 7, 8], [7], [8, 9, 10, 4, 5, 6], [4, 4], [10, 9, 8] * 8]
MOST_NEW = (9, 25, 3, 40, 14, 30, 6, 1, 20)
SETTINGS = DecodeConfig(temperature=1.5, top_k=6, top_p=0.95, beam_size=3)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "window": 3, "n_kv_heads": 2},
    {"positions": "t5", "score": "cosine"},
    {"positions": "relative"},
    {"positions": "alibi", "score": "additive"},
]


def writing(form: str, dtype: torch.dtype = torch.float32, **style: Any) -> DecoderForm | Seq2SeqForm:
    """A model whose weights are large enough that what it writes is not one token repeated."""
    torch.manual_seed(0)
    config = ModelConfig(d_model=32, d_ff=64, n_layers=2, n_heads=4, dropout=0.0, tie_embeddings=False, **style)
    sizes = Sizes(vocab_size=11, max_len=24 if form == "decoder" else 64)
    model = (Decoder if form == "decoder" else Seq2Seq)(config, sizes)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    model = model.to(DEVICE, dtype).eval().requires_grad_(False)
    return DecoderForm(model, 24) if isinstance(model, Decoder) else Seq2SeqForm(model, 64, bos=2)


def searched(form: DecoderForm | Seq2SeqForm, strategy: str) -> list[list[int]]:
    ending = Ending(eos=3, limits=MOST_NEW, banned=(0, 1, 2))
    how, seeds = replace(SETTINGS, strategy=strategy), list(range(len(GIVEN)))
    return run_search(form, GIVEN, how, ending, default="", seeds=seeds)


def stepped(form: DecoderForm | Seq2SeqForm, strategy: str) -> list[list[int]]:
    """One text after the other, without a graph."""
    found = []
    for row, limit in enumerate(MOST_NEW):
        stepper, ending = Cached(form, [GIVEN[row]]), Ending(eos=3, limits=(limit,), banned=(0, 1, 2))
        if strategy == "beam":
            found += beam_search(stepper, ending, size=3, length_penalty=SETTINGS.length_penalty)
        else:
            found += write(stepper, Sample(SETTINGS, [row]) if strategy == "sample" else best, ending)
    return found


@pytest.mark.parametrize("style", VARIANTS)
@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("form", ["decoder", "seq2seq"])
def test_replayed_steps_write_what_single_ones_write(
    form: str,
    strategy: str,
    style: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = writing(form, **style)
    wanted = stepped(made, strategy)
    assert len({tuple(tokens) for tokens in wanted}) > 1  # there is something to compare
    assert searched(made, strategy) == wanted
    monkeypatch.setattr(replaying, "MOST_ROWS", 2 * 3)  # few slots: rows wait, and come in when others are done
    assert searched(made, strategy) == wanted
    assert not caplog.records  # every step was recorded
    kept = list(replaying._KEPT[made.model].values())
    assert kept
    assert all(slots.graph is not None for slots in kept)


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_the_next_call_replays_the_same_graph_with_the_weights_of_then(strategy: str) -> None:
    made = writing("decoder")
    first = searched(made, strategy)
    graphs = [slots.graph for slots in replaying._KEPT[made.model].values()]
    assert searched(made, strategy) == first
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(-0.9)
    assert searched(made, strategy) == stepped(made, strategy)
    assert [slots.graph for slots in replaying._KEPT[made.model].values()] == graphs


def test_a_model_in_half_precision_is_replayed_too() -> None:
    made = writing("decoder", torch.bfloat16)
    found = searched(made, "greedy")
    assert any(found)
    assert all(len(tokens) <= most for tokens, most in zip(found, MOST_NEW, strict=True))
    (slots,) = replaying._KEPT[made.model].values()
    assert slots.room.dtype is torch.bfloat16
    assert slots.scores.dtype is torch.float32
    assert slots.scores.isfinite().all()


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
def test_a_study_on_cuda_trains_scores_and_goes_on(task: str, tmp_path: Path) -> None:
    tests = {
        "classify": "builtin:reviews/test",
        "generate": "builtin:topics/test",
        "translate": few_pairs(tmp_path / "test.tsv", ("four", "five", "one")),
    }
    tree: dict[str, Any] = {
        "task": task,
        "common": {"model": MODEL, "train": {"max_steps": 6, "eval_every": 3, "batch_size": 8}, "data.max_len": 32},
        "variants": {"plain": {}, "narrow": {"model.window": 4}},
        "tests": {"test": tests[task]},
    }
    if task == "translate":
        tree["common"]["data.train"] = few_pairs(tmp_path / "pairs.tsv")
    made = [compare(tree, seeds=3, out=tmp_path / "out", device="cuda", quiet=True) for _ in range(2)]
    assert all(not result.failure for result in made[0].results)
    assert [result.scores for result in made[0].results] == [result.scores for result in made[1].results]
    assert made[0].comparisons[0].difference.pairs == 3


def test_an_estimator_answers_on_a_card_as_on_a_cpu() -> None:
    pytest.importorskip("sklearn")
    from triform.sklearn import TextVectorizer

    texts = [f"row {n} is {'good' if n % 2 else 'bad'}" + " indeed" * (n % 5) for n in range(40)]
    vectorizer = TextVectorizer(d_model=32, n_layers=2, n_heads=2, max_steps=5, device="cuda", random_state=0)
    here = vectorizer.fit(texts, [n % 2 for n in range(40)]).transform(texts)
    there = pickle.loads(pickle.dumps(vectorizer)).set_params(device="cpu").transform(texts)
    assert here.shape == there.shape == (40, 32)
    np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-3)  # of states whose size is about 1


RECURRENT = {"kind": "lstm", "d_model": 32, "n_layers": 2, "dropout": 0.2}


@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_recurrent_model_learns_on_cuda_what_it_learns_on_the_cpu(task: Any, kind: str, tmp_path: Path) -> None:
    """Recorded or not: without dropout the weights after some steps are those of the CPU.

    By plain descent: Adam would make a whole step of a gradient that is nothing but rounding.
    """
    how: dict[str, Any] = {"max_steps": 8, "batch_size": 8, "eval_every": 8, "log_every": 1, "precision": "fp32"}
    how |= {"optimizer": "sgd", "lr": 0.1}
    model = RECURRENT | {"kind": kind, "dropout": 0.0}
    made = {
        device: train(task, model=model, train=how, out=str(tmp_path / device), device=device, quiet=True)
        for device in ("cpu", "cuda")
    }
    ours, theirs = (load_file(made[device].path / "model.safetensors") for device in ("cuda", "cpu"))
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=1e-2, atol=1e-3)
    events = (made["cuda"].path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "cannot be recorded" not in events


@pytest.mark.parametrize("task", ["generate", "translate"])
@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_a_recurrent_model_writes_on_cuda_what_it_writes_on_the_cpu(
    task: Any, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 throughout: cuDNN's own default, tf32, is enough to turn a near tie of a young model."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    how = {"max_steps": 5, "batch_size": 8}
    run = train(task, model=RECURRENT, train=how, out=str(tmp_path / "run"), device="cpu", quiet=True)
    texts = ["one", "two and three", "the"] if task == "translate" else ["the ", "a", "of the "]
    asked: dict[str, Any] = {"strategy": strategy, "max_new_tokens": 12}
    on_cuda = load(run.path, device="cuda", precision="fp32").predict(texts, **asked)
    on_cpu = load(run.path, device="cpu", precision="fp32").predict(texts, **asked)
    assert [made.output for made in on_cuda] == [made.output for made in on_cpu]


def test_what_speaks_for_a_label_is_told_of_a_recurrent_model_on_cuda_too(tmp_path: Path) -> None:
    how = {"max_steps": 5, "batch_size": 8}
    train("classify", model=RECURRENT, train=how, out=str(tmp_path / "run"), device="cpu", quiet=True)
    told = [load(tmp_path / "run", device=device).explain("a good film") for device in ("cuda", "cpu")]
    values = [each.attributions[0].values for each in told]
    np.testing.assert_allclose(*values, rtol=1e-2, atol=1e-4)
