"""The checks are checked: models in order pass, and a planted fault is found by the check meant for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import TASKS, Config, ModelConfig, Sizes, TaskName
from triform.explain import checks, record
from triform.explain.checks import CHECKS, check_model
from triform.explain.trial import fresh_model
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier, Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.cache import Cache, Growing
from triform.nn.kernels import Matching, fused, spread
from triform.nn.masks import Causal, Newest, Rule, Span, Together, causal, everything, whole, window
from triform.nn.rows import Packed, Padded

SUMS = "attention rows sum to one"
PADDING = "no weight on padding"
FUTURE = "no weight on the future"
WINDOW = "no weight outside the window"
HIDDEN = "hidden tokens have no influence"
BATCH = "padding and packing change nothing"
GRADIENTS = "gradients reach every parameter"
FAR = "the farthest key in reach is read"
KERNEL = "the kernel equals the formula"
HEART = "one batch can be learned by heart"
COUNT = "the parameter count equals the formula"
CACHED = "cached decoding equals uncached"

EVERY_FORM = pytest.mark.parametrize("task", TASKS)
SIZES = Sizes(vocab_size=40, max_len=16, n_labels=3)
Patch = pytest.MonkeyPatch


def settings(task: TaskName, **chosen: Any) -> Config:
    shape = {"d_model": 16, "d_ff": 32, "n_layers": 2, "n_heads": 4, "n_buckets": 8, "max_distance": 20}
    return Config(task=task, model=ModelConfig(**shape | chosen))


def quickly(patch: Patch, *names: str) -> None:
    """Only these checks; without names all but the one that takes a second."""
    chosen = names or tuple(name for name in CHECKS if name != HEART)
    patch.setattr(checks, "CHECKS", {name: CHECKS[name] for name in chosen})


def failures(config: Config, sizes: Sizes = SIZES, model: nn.Module | None = None) -> dict[str, str]:
    found = check_model(config, sizes, model or fresh_model(config, sizes))
    return {finding.name: finding.detail for finding in found if finding.good is False}


def test_the_names_here_are_those_of_the_checks() -> None:
    assert list(CHECKS) == [
        SUMS,
        PADDING,
        FUTURE,
        WINDOW,
        FAR,
        KERNEL,
        HIDDEN,
        BATCH,
        GRADIENTS,
        HEART,
        COUNT,
        CACHED,
    ]


# ------------------------------------------------------------------------------------------ models in order

GOOD: list[dict[str, Any]] = [
    {},
    {"positions": "sinusoidal", "norm_position": "post", "final_norm": False, "scale_embeddings": True},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "alibi", "window": 2, "n_layers": 3},
    {"positions": "relative", "score": "cosine"},
    {"positions": "t5", "score": "additive"},
    {"positions": "none", "score": "dot", "activation": "relu"},
    {"n_kv_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False, "qkv_bias": False},
    {"window": 4},
    {"window": 100},
    {"layer_windows": (3, -1)},
    {"layer_windows": (2, 5), "tie_embeddings": False, "head_bias": False},
    {"n_layers": 1, "n_heads": 1, "dropout": 0.5, "attention_dropout": 0.5},
]


@EVERY_FORM
@pytest.mark.parametrize("chosen", GOOD, ids=str)
def test_settings_of_every_kind_pass(monkeypatch: Patch, task: TaskName, chosen: dict[str, Any]) -> None:
    quickly(monkeypatch)
    assert failures(settings(task, **chosen)) == {}


def test_an_encoder_with_a_table_of_pairs_passes(monkeypatch: Patch) -> None:
    quickly(monkeypatch)
    assert failures(settings("classify", pair_rows=40)) == {}


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_an_encoder_that_reads_only_back_passes(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch)
    assert failures(settings(task, reach="causal")) == {}
    assert failures(settings(task, reach="causal", window=4)) == {}


@EVERY_FORM
def test_windows_so_long_that_they_are_cut_in_pieces_pass(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch)
    sizes = replace(SIZES, max_len=512)
    assert failures(settings(task, window=16), sizes) == {}
    assert failures(settings(task, layer_windows=(70, -1)), sizes) == {}


@pytest.mark.parametrize("second", [30, 60])
@pytest.mark.parametrize("tied", [True, False])
def test_two_vocabularies_pass(monkeypatch: Patch, second: int, tied: bool) -> None:
    quickly(monkeypatch)
    sizes = replace(SIZES, target_vocab_size=second)
    assert failures(settings("translate", tie_embeddings=tied), sizes) == {}


@EVERY_FORM
@pytest.mark.parametrize("max_len", [3, 5])
def test_short_contexts_pass(monkeypatch: Patch, task: TaskName, max_len: int) -> None:
    quickly(monkeypatch)
    assert failures(settings(task), replace(SIZES, max_len=max_len)) == {}


@EVERY_FORM
def test_the_shortest_context_passes(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch)
    assert failures(settings(task), replace(SIZES, max_len=2)) == {}


@EVERY_FORM
def test_one_batch_is_learned_by_heart(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch, HEART)
    assert failures(settings(task, n_layers=1, window=4), replace(SIZES, max_len=12)) == {}


@pytest.mark.parametrize(
    ("chosen", "vocab_size"),
    [
        ({"positions": "rotary"}, 40),
        ({"window": 1}, 20),
        ({}, 6),
    ],
    ids=str,
)
def test_what_cannot_be_known_is_not_asked_for(monkeypatch: Patch, chosen: dict[str, Any], vocab_size: int) -> None:
    quickly(monkeypatch, HEART)
    monkeypatch.setattr(checks, "MOST_STEPS", 200)
    sizes = replace(SIZES, vocab_size=vocab_size)
    assert failures(settings("generate", n_layers=1, **chosen), sizes) == {}


@pytest.mark.parametrize("form", [Classifier, Decoder, Seq2Seq])
def test_a_model_that_cannot_learn_is_found_by_that_alone(monkeypatch: Patch, form: Any) -> None:
    task = TASKS[[Classifier, Decoder, Seq2Seq].index(form)]
    right = form.forward
    monkeypatch.setattr(form, "forward", lambda self, *args: right(self, *args).tanh() / 10)
    monkeypatch.setattr(checks, "MOST_STEPS", 60)
    found = failures(settings(task, n_layers=1), replace(SIZES, max_len=8))
    assert set(found) == {HEART}
    assert "after 60 steps" in found[HEART]


def test_a_model_whose_output_is_cut_off_from_its_weights_cannot_learn(monkeypatch: Patch) -> None:
    right = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda self, *args: right(self, *args).detach())
    found = failures(settings("generate"))
    assert set(found) == {GRADIENTS, HEART}
    assert found[HEART].startswith("RuntimeError: ")


@EVERY_FORM
def test_checks_that_do_not_apply_say_so(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch)
    config = settings(task)
    found = {each.name: each for each in check_model(config, SIZES, fresh_model(config, SIZES))}
    idle = {name for name, finding in found.items() if finding.good is None}
    assert idle == {WINDOW} | ({FUTURE, CACHED} if task == "classify" else set())
    assert all(finding.detail for finding in found.values())


# ------------------------------------------------------------------------------------------ the model is left alone


@EVERY_FORM
def test_the_checked_model_and_the_callers_random_numbers_are_left_alone(task: TaskName) -> None:
    config, sizes = settings(task, dropout=0.2), replace(SIZES, max_len=8)
    model = fresh_model(config, sizes).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kernels = [layer.kernel for stack in model.attention_stacks().values() for layer in stack]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(check_model(config, sizes, model))
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.state_dict().keys() == before.keys()
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype == torch.float32
        assert torch.equal(value, before[name])
    assert [layer.kernel for stack in model.attention_stacks().values() for layer in stack] == kernels


@EVERY_FORM
def test_checks_give_the_same_findings_twice(monkeypatch: Patch, task: TaskName) -> None:
    quickly(monkeypatch)
    config = settings(task, window=3)
    first, second = (list(check_model(config, SIZES, fresh_model(config, SIZES))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_the_caller_does_with_gradients_is_no_matter(monkeypatch: Patch, mode: Any) -> None:
    quickly(monkeypatch, GRADIENTS, HIDDEN)
    with mode():
        assert failures(settings("classify")) == {}


def test_a_check_that_crashes_counts_as_failed_and_names_the_error(monkeypatch: Patch) -> None:
    def broken(self: Decoder, *args: Any) -> Tensor:
        raise ValueError("nothing works")

    monkeypatch.setattr(Decoder, "states", broken)
    found = failures(settings("generate"))
    assert set(found) == set(CHECKS) - {COUNT}
    assert set(found.values()) == {"ValueError: nothing works"}


# ------------------------------------------------------------------------------------------ planted faults


@dataclass(frozen=True)
class Fault:
    """What goes wrong, the check that is meant to find it, and those that may find it too."""

    task: TaskName
    plant: Callable[[Patch, Any], None]
    meant: str
    also: frozenset[str] = frozenset()
    chosen: tuple[tuple[str, Any], ...] = ()
    max_len: int = 16


def fault(
    task: TaskName, plant: Callable[..., None], meant: str, *also: str, max_len: int = 16, **chosen: Any
) -> Any:
    return Fault(task, plant, meant, frozenset(also), tuple(chosen.items()), max_len)


class OneAhead(Causal):
    """The mask off by one: the next token can be read."""

    span = Span(after=1)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q + 1) & (b >= 0)


def reads_one_ahead(patch: Patch, model: Any) -> None:
    model.reaches = tuple(OneAhead() for _ in model.reaches)


def encoder_reads_back(patch: Patch, model: Any) -> None:
    model.encoder.reaches = tuple(causal for _ in model.encoder.reaches)


def encoder_reads_one_ahead(patch: Patch, model: Any) -> None:
    reads_one_ahead(patch, model.encoder)


def reads_everything(patch: Patch, model: Any) -> None:
    model.reaches = tuple(everything for _ in model.reaches)


def window_is(width: int, part: str = "", layer: int = -1) -> Callable[[Patch, Any], None]:
    """Another window than the settings say, in the encoder or the decoder, in one layer or in all."""

    def plant(patch: Patch, model: Any) -> None:
        stack = getattr(model, part) if part else model
        wrong = (everything if part else causal) & window(width)
        stack.reaches = tuple(wrong if layer in (-1, place) else reach for place, reach in enumerate(stack.reaches))

    return plant


def kernel_reads(rule: Rule, stack: str, layer: int = -1) -> Callable[[Patch, Any], None]:
    """The kernel goes by another rule than the one that is recorded; what batches hide stays hidden."""

    def plant(patch: Patch, model: Any) -> None:
        def kernel(q: Tensor, k: Tensor, v: Tensor, told: Rule, matching: Matching, dropout: float) -> Tensor:
            kept = [part for part in getattr(told, "rules", ()) if part.rows > 1 or isinstance(part, Together)]
            own = Newest(rule, told.keep, told.age) if isinstance(told, Newest) else rule
            for part in kept:
                own = own & part
            return fused(q, k, v, own, matching, dropout)

        layers = model.attention_stacks()[stack]
        for each in layers if layer < 0 else layers[layer : layer + 1]:
            each.kernel = kernel

    return plant


def recording_forgets_the_window(patch: Patch, model: Any) -> None:
    right = record.weights
    patch.setattr(record, "weights", lambda q, k, rule, matching: right(q, k, causal, matching))


def recorded_by_column(patch: Patch, model: Any) -> None:
    right = record.weights

    def by_column(q: Tensor, k: Tensor, rule: Rule, matching: Matching) -> Tensor:
        shares = right(q, k, rule, matching)
        return shares / shares.sum(-2, keepdim=True).clamp(min=1e-9)

    patch.setattr(record, "weights", by_column)


def softmax_over_queries(patch: Patch, model: Any) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
        piece = whole(q.shape[-2], k.shape[-2])
        scores = q @ spread(k, q).mT
        shares = scores.masked_fill(~rule.dense(piece, q.device), -1e9).softmax(dim=-2)
        return shares @ spread(v, q)

    for stack in model.attention_stacks().values():
        for layer in stack:
            layer.kernel = kernel


def encoder_reads_padding(patch: Patch, model: Any) -> None:
    right = Encoder.forward

    def blind(self: Encoder, tokens: Tensor, keep: Any = None, segments: Tensor | None = None) -> Tensor:
        return right(self, tokens, keep if isinstance(keep, Packed) else None, segments)

    patch.setattr(Encoder, "forward", blind)


def cross_reads_padding(patch: Patch, model: Any) -> None:
    patch.setattr(Padded, "read_by", lambda self, queries: everything)


def decoder_reads_padding(patch: Patch, model: Any) -> None:
    right = Decoder.states

    def blind(self: Decoder, tokens: Tensor, keep: Any = None, *more: Any) -> Tensor:
        return right(self, tokens, keep if isinstance(keep, Packed) else None, *more)

    patch.setattr(Decoder, "states", blind)


def mean_over_padding(patch: Patch, model: Any) -> None:
    patch.setattr(Padded, "mean", lambda self, x: x.mean(dim=1))


def unused_parameter(patch: Patch, model: Any) -> None:
    model.forgotten = nn.Parameter(torch.ones(3))


def frozen_parameter(patch: Patch, model: Any) -> None:
    next(model.parameters()).requires_grad_(False)


def detached_branch(patch: Patch, model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "feedforward"))
    block.feedforward.register_forward_hook(lambda module, inputs, output: output.detach())


def nan_gradient(patch: Patch, model: Any) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    next(module for module in model.modules() if hasattr(module, "feedforward")).register_forward_hook(hook)


def head_shifted(patch: Patch, model: Any) -> None:
    """A number too many, used and learned: only the count can tell."""
    model.head.more = nn.Parameter(torch.linspace(-1, 1, 1))
    model.head.register_forward_hook(lambda module, inputs, output: output * module.more)


def one_parameter_too_few(patch: Patch, model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "feedforward"))
    block.attention.out.bias = None


def cache_forgets_the_newest_key(patch: Patch, model: Any) -> None:
    right = Growing.read

    def stale(self: Growing, project: Any) -> Any:
        keys, values = right(self, project)
        return (keys[:, :, :-1], values[:, :, :-1]) if keys.shape[2] > 1 else (keys, values)

    patch.setattr(Growing, "read", lambda self, project: stale(self, project))


def cache_is_overwritten(patch: Patch, model: Any) -> None:
    """The first key becomes the newest one's copy once there is a past."""
    right = Growing.read

    def wrong(self: Growing, project: Any) -> Any:
        past = self.length
        keys, values = right(self, project)
        if past:
            keys = torch.cat([keys[:, :, -1:], keys[:, :, 1:]], dim=2)
        return keys, values

    patch.setattr(Growing, "read", wrong)


def cache_gives_nan(patch: Patch, model: Any) -> None:
    right = Growing.read

    def wrong(self: Growing, project: Any) -> Any:
        past = self.length
        keys, values = right(self, project)
        return (keys, values * float("nan")) if past else (keys, values)

    patch.setattr(Growing, "read", wrong)


def positions_stand_still(patch: Patch, model: Any) -> None:
    right = Padded.positions
    patch.setattr(Padded, "positions", lambda self, start, t, device: right(self, 0, t, device))


def select_is_ignored(patch: Patch, model: Any) -> None:
    patch.setattr(Cache, "select", lambda self, rows: None)


def packed_rows_read_one_another(patch: Patch, model: Any) -> None:
    patch.setattr(Together, "allows", lambda self, b, q, k: (b >= 0) & (q >= 0) & (k >= 0))
    patch.setattr(Together, "stretches", lambda self, t, s: (whole(t, s),))
    patch.setattr(Together, "exact", False)


def packed_positions_run_on(patch: Patch, model: Any) -> None:
    def on(self: Packed, start: int, t: int, device: torch.device) -> Tensor:
        return torch.arange(t, device=device) % SIZES.max_len

    patch.setattr(Packed, "positions", on)


def packed_mean_of_all(patch: Patch, model: Any) -> None:
    patch.setattr(Packed, "mean", lambda self, x: x.mean(dim=1).expand(len(self.lengths), -1))


def nan_in_a_padded_row(patch: Patch, model: Any) -> None:
    """Rows after the first are no numbers where there is padding, as when a mask hides all of a row."""
    right = Decoder.forward

    def wrong(self: Decoder, tokens: Tensor, keep: Any = None, *more: Any) -> Tensor:
        scores = right(self, tokens, keep, *more)
        if isinstance(keep, Tensor) and not more:
            scores = torch.cat([scores[:1], scores[1:] * float("nan")])
        return scores

    patch.setattr(Decoder, "forward", wrong)


def nan_in_recorded_weights(patch: Patch, model: Any) -> None:
    """In every row but the first."""
    right = record.weights

    def wrong(*args: Any) -> Tensor:
        shares = right(*args)
        shares[1:] = float("nan")
        return shares

    patch.setattr(record, "weights", wrong)


FAULTS: dict[str, Any] = {
    # who reads what
    "a decoder reads one ahead": fault("generate", reads_one_ahead, FUTURE, HIDDEN, PADDING, BATCH, CACHED),
    "a target is read one ahead": fault("translate", reads_one_ahead, FUTURE, HIDDEN, PADDING, BATCH, CACHED),
    "a decoder reads everything": fault("generate", reads_everything, FUTURE, HIDDEN, PADDING, BATCH, CACHED),
    "a causal encoder reads one ahead": fault(
        "classify", encoder_reads_one_ahead, FUTURE, HIDDEN, PADDING, BATCH, reach="causal"
    ),
    "a source is read one ahead": fault(
        "translate", encoder_reads_one_ahead, FUTURE, HIDDEN, PADDING, BATCH, reach="causal"
    ),
    "a window too wide by one": fault("generate", window_is(5), WINDOW, HIDDEN, window=4),
    "a window too wide in an encoder": fault("classify", window_is(5, "encoder"), WINDOW, HIDDEN, window=4),
    "a window too wide for a source": fault("translate", window_is(5, "encoder"), WINDOW, HIDDEN, window=4),
    "a window too wide for a target": fault("translate", window_is(5), WINDOW, HIDDEN, window=4),
    "a window too narrow by one": fault("generate", window_is(3), FAR, HIDDEN, window=4),
    "a window too narrow in an encoder": fault("classify", window_is(3, "encoder"), FAR, HIDDEN, window=4),
    "a window too narrow for a target": fault("translate", window_is(3), FAR, HIDDEN, window=4),
    "a window too narrow for a source": fault("translate", window_is(3, "encoder"), FAR, HIDDEN, window=4),
    "a window too narrow in one layer": fault("generate", window_is(3, layer=0), FAR, HIDDEN, layer_windows=(4, 6)),
    "no window at all": fault("generate", window_is(-1), WINDOW, HIDDEN, window=4),
    "a long window too wide": fault("generate", window_is(17), WINDOW, HIDDEN, window=16, max_len=512),
    "all layers read only five": fault("generate", window_is(5), FAR, HIDDEN),
    "all layers of an encoder read only five": fault("classify", window_is(5, "encoder"), FAR, HIDDEN),
    "the first layer reads only five": fault("generate", window_is(5, layer=0), FAR, HIDDEN),
    "an encoder reads only back": fault("classify", encoder_reads_back, FAR, HIDDEN),
    "a kernel that reads only back": fault("classify", kernel_reads(causal, "encoder"), KERNEL, HIDDEN, BATCH),
    "a kernel of one layer that reads only five": fault(
        "generate", kernel_reads(causal & window(5), "decoder", layer=0), KERNEL, HIDDEN
    ),
    # kernels that do not do what is recorded
    "a kernel without the window": fault("generate", kernel_reads(causal, "decoder"), HIDDEN, KERNEL, window=4),
    "a kernel with a wider window": fault(
        "generate", kernel_reads(causal & window(5), "decoder"), HIDDEN, KERNEL, window=4
    ),
    "a kernel without the window in many layers": fault(
        "generate", kernel_reads(causal, "decoder"), HIDDEN, KERNEL, window=8, n_layers=4, max_len=32
    ),
    "a kernel with a narrower window": fault(
        "generate", kernel_reads(causal & window(3), "decoder"), HIDDEN, KERNEL, window=4
    ),
    "an encoder's kernel without the window": fault(
        "classify", kernel_reads(everything, "encoder"), HIDDEN, KERNEL, window=4
    ),
    "a source's kernel without the window": fault(
        "translate", kernel_reads(everything, "encoder"), HIDDEN, KERNEL, window=4
    ),
    "a kernel that reads one ahead": fault(
        "generate", kernel_reads(OneAhead(), "decoder"), HIDDEN, KERNEL, BATCH, CACHED
    ),
    "a source's kernel that reads ahead": fault(
        "translate", kernel_reads(everything, "encoder"), HIDDEN, KERNEL, reach="causal"
    ),
    "a recording without the window": fault("generate", recording_forgets_the_window, WINDOW, window=4),
    # softmax
    "shares of a column": fault("classify", recorded_by_column, SUMS),
    "shares of a column, ahead too": fault("generate", recorded_by_column, SUMS),
    "a softmax over queries": fault("generate", softmax_over_queries, KERNEL, HIDDEN, BATCH, CACHED),
    "a softmax over queries in an encoder": fault("classify", softmax_over_queries, KERNEL, BATCH, HIDDEN),
    "weights that are no numbers": fault("generate", nan_in_recorded_weights, SUMS, PADDING, FUTURE),
    # padding and packing
    "an encoder reads padding": fault("classify", encoder_reads_padding, PADDING, HIDDEN, BATCH),
    "padding of a source is read": fault("translate", encoder_reads_padding, PADDING, HIDDEN, BATCH, CACHED),
    "padding of a source is looked at": fault("translate", cross_reads_padding, PADDING, HIDDEN, BATCH, CACHED),
    "prompts read padding": fault("generate", decoder_reads_padding, CACHED),
    "a mean over padding": fault("classify", mean_over_padding, BATCH, HIDDEN),
    "packed rows read one another": fault("classify", packed_rows_read_one_another, BATCH),
    "packed texts read one another": fault("generate", packed_rows_read_one_another, BATCH),
    "packed pairs read one another": fault("translate", packed_rows_read_one_another, BATCH),
    "packed positions run on": fault("generate", packed_positions_run_on, BATCH),
    "a packed mean of all": fault("classify", packed_mean_of_all, BATCH),
    "a padded row that is no number": fault("generate", nan_in_a_padded_row, BATCH, HIDDEN, GRADIENTS),
    # parameters
    "an unused parameter": fault("classify", unused_parameter, GRADIENTS, COUNT),
    "a frozen parameter": fault("generate", frozen_parameter, GRADIENTS),
    **{f"a detached branch, {task}": fault(task, detached_branch, GRADIENTS) for task in TASKS},
    **{f"a gradient that is no number, {task}": fault(task, nan_gradient, GRADIENTS) for task in TASKS},
    **{f"a number too many, {task}": fault(task, head_shifted, COUNT) for task in TASKS},
    **{f"a bias too few, {task}": fault(task, one_parameter_too_few, COUNT) for task in TASKS},
    # decoding
    "a cache forgets its newest key": fault("generate", cache_forgets_the_newest_key, CACHED),
    "a writer's cache forgets its newest key": fault("translate", cache_forgets_the_newest_key, CACHED),
    "a cache is overwritten": fault("generate", cache_is_overwritten, CACHED),
    "a cache of no numbers": fault("generate", cache_gives_nan, CACHED),
    "a writer's positions stand still": fault("translate", positions_stand_still, CACHED),
    "positions stand still": fault("generate", positions_stand_still, CACHED),
    "select is ignored": fault("generate", select_is_ignored, CACHED),
    "a writer's select is ignored": fault("translate", select_is_ignored, CACHED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_the_check_meant_for_it(monkeypatch: Patch, name: str) -> None:
    planted: Fault = FAULTS[name]
    quickly(monkeypatch)
    config, sizes = settings(planted.task, **dict(planted.chosen)), replace(SIZES, max_len=planted.max_len)
    model = fresh_model(config, sizes)
    planted.plant(monkeypatch, model)
    found = failures(config, sizes, model)
    assert planted.meant in found
    assert set(found) <= {planted.meant} | planted.also
