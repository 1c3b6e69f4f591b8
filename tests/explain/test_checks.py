"""The checks are checked: models in order pass, and a planted fault is found by the check meant for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.config import TASK_NAMES, Config, DataSizes, ModelConfig, TaskName
from triform.explain import checks, recorder
from triform.explain.checks import CHECKS, check_model
from triform.explain.probes import build_untrained_model
from triform.generation.kv_cache import DynamicKVStore, KVCache
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier, Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.attention import ScoreFunction, repeat_kv
from triform.nn.kernels import tiling
from triform.nn.kernels.beams import BeamMask
from triform.nn.kernels.packing import PackedLayout, PackedMask
from triform.nn.kernels.sdpa import KNOWN_MASKS, MaskInfo, full_tile
from triform.nn.kernels.tiling import tiled_sdpa_attention
from triform.nn.layouts import PaddedLayout
from triform.nn.masks import AttentionMask, CausalMask, causal_mask, full_mask, window_mask

SUMS_CHECK = "attention rows sum to one"
PADDING_CHECK = "no weight on padding"
FUTURE_CHECK = "no weight on the future"
WINDOW_CHECK = "no weight outside the window"
INFLUENCE_CHECK = "masked tokens have no influence"
BATCH_CHECK = "padding and packing change nothing"
GRADIENT_CHECK = "gradients reach every parameter"
FARTHEST_KEY_CHECK = "the farthest visible key is read"
KERNEL_CHECK = "the kernel matches the reference"
OVERFIT_CHECK = "the model can overfit one batch"
COUNT_CHECK = "the parameter count matches the formula"
CACHE_CHECK = "cached decoding matches uncached"

EVERY_TASK = pytest.mark.parametrize("task", TASK_NAMES)
SIZES = DataSizes(vocab_size=40, max_len=16, n_labels=3)
MonkeyPatch = pytest.MonkeyPatch


def build_config(task: TaskName, **model_settings: Any) -> Config:
    sizes = {"d_model": 16, "d_ff": 32, "n_layers": 2, "n_heads": 4, "n_buckets": 8, "max_distance": 20}
    return Config(task=task, model=ModelConfig(**sizes | model_settings))


def select_checks(patch: MonkeyPatch, *names: str) -> None:
    """Only these checks; without names all but the one that takes a second."""
    selected = names or tuple(name for name in CHECKS if name != OVERFIT_CHECK)
    patch.setattr(checks, "CHECKS", {name: CHECKS[name] for name in selected})


def failed_checks(config: Config, sizes: DataSizes = SIZES, model: nn.Module | None = None) -> dict[str, str]:
    results = check_model(config, sizes, model or build_untrained_model(config, sizes))
    return {result.name: result.detail for result in results if result.good is False}


def test_a_linear_part_that_gradients_do_not_reach_passes(monkeypatch: MonkeyPatch) -> None:
    select_checks(monkeypatch)
    assert not failed_checks(build_config("classify", term_buckets=64))


def test_the_names_here_are_those_of_the_checks() -> None:
    assert list(CHECKS) == [
        SUMS_CHECK,
        PADDING_CHECK,
        FUTURE_CHECK,
        WINDOW_CHECK,
        FARTHEST_KEY_CHECK,
        KERNEL_CHECK,
        INFLUENCE_CHECK,
        BATCH_CHECK,
        GRADIENT_CHECK,
        OVERFIT_CHECK,
        COUNT_CHECK,
        CACHE_CHECK,
    ]


# ------------------------------------------------------------------------------------------ models in order

VALID_SETTINGS: list[dict[str, Any]] = [
    {},
    {"positions": "sinusoidal", "norm_position": "post", "final_norm": False, "scale_embeddings": True},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "alibi", "window": 2, "n_layers": 3},
    {"positions": "relative", "attention_score": "cosine"},
    {"positions": "t5", "attention_score": "additive"},
    {"positions": "none", "attention_score": "dot", "activation": "relu"},
    {"n_kv_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False, "qkv_bias": False},
    {"window": 4},
    {"window": 100},
    {"layer_windows": (3, -1)},
    {"layer_windows": (2, 5), "tie_embeddings": False, "head_bias": False},
    {"n_layers": 1, "n_heads": 1, "dropout": 0.5, "attention_dropout": 0.5},
]


@EVERY_TASK
@pytest.mark.parametrize("model_settings", VALID_SETTINGS, ids=str)
def test_settings_of_every_kind_pass(
    monkeypatch: MonkeyPatch, task: TaskName, model_settings: dict[str, Any]
) -> None:
    select_checks(monkeypatch)
    assert failed_checks(build_config(task, **model_settings)) == {}


def test_an_encoder_with_a_table_of_pairs_passes(monkeypatch: MonkeyPatch) -> None:
    select_checks(monkeypatch)
    assert failed_checks(build_config("classify", bigram_buckets=40)) == {}


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_an_encoder_that_reads_only_back_passes(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch)
    assert failed_checks(build_config(task, attention_direction="causal")) == {}
    assert failed_checks(build_config(task, attention_direction="causal", window=4)) == {}


@EVERY_TASK
def test_windows_so_long_that_they_are_cut_in_pieces_pass(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch)
    sizes = replace(SIZES, max_len=512)
    assert failed_checks(build_config(task, window=16), sizes) == {}
    assert failed_checks(build_config(task, layer_windows=(70, -1)), sizes) == {}


@pytest.mark.parametrize("target_vocab_size", [30, 60])
@pytest.mark.parametrize("tied", [True, False])
def test_two_vocabularies_pass(monkeypatch: MonkeyPatch, target_vocab_size: int, tied: bool) -> None:
    select_checks(monkeypatch)
    sizes = replace(SIZES, target_vocab_size=target_vocab_size)
    assert failed_checks(build_config("translate", tie_embeddings=tied), sizes) == {}


@EVERY_TASK
@pytest.mark.parametrize("max_len", [3, 5])
def test_short_contexts_pass(monkeypatch: MonkeyPatch, task: TaskName, max_len: int) -> None:
    select_checks(monkeypatch)
    assert failed_checks(build_config(task), replace(SIZES, max_len=max_len)) == {}


@EVERY_TASK
def test_the_shortest_context_passes(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch)
    assert failed_checks(build_config(task), replace(SIZES, max_len=2)) == {}


@EVERY_TASK
def test_one_batch_is_learned_by_heart(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch, OVERFIT_CHECK)
    assert failed_checks(build_config(task, n_layers=1, window=4), replace(SIZES, max_len=12)) == {}


@pytest.mark.parametrize(
    ("model_settings", "vocab_size"),
    [
        ({"positions": "rotary"}, 40),
        ({"window": 1}, 20),
        ({}, 6),
    ],
    ids=str,
)
def test_what_cannot_be_known_is_not_asked_for(
    monkeypatch: MonkeyPatch, model_settings: dict[str, Any], vocab_size: int
) -> None:
    select_checks(monkeypatch, OVERFIT_CHECK)
    monkeypatch.setattr(checks, "MAX_OVERFIT_STEPS", 200)
    sizes = replace(SIZES, vocab_size=vocab_size)
    assert failed_checks(build_config("generate", n_layers=1, **model_settings), sizes) == {}


@pytest.mark.parametrize("form", [Classifier, Decoder, Seq2Seq])
def test_a_model_that_cannot_learn_is_found_by_that_alone(monkeypatch: MonkeyPatch, form: Any) -> None:
    task = TASK_NAMES[[Classifier, Decoder, Seq2Seq].index(form)]
    original = form.forward
    monkeypatch.setattr(form, "forward", lambda self, *args: original(self, *args).tanh() / 10)
    monkeypatch.setattr(checks, "MAX_OVERFIT_STEPS", 60)
    failed = failed_checks(build_config(task, n_layers=1), replace(SIZES, max_len=8))
    assert set(failed) == {OVERFIT_CHECK}
    assert "after 60 steps" in failed[OVERFIT_CHECK]


def test_a_model_whose_output_is_cut_off_from_its_weights_cannot_learn(monkeypatch: MonkeyPatch) -> None:
    original = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda self, *args: original(self, *args).detach())
    failed = failed_checks(build_config("generate"))
    assert set(failed) == {GRADIENT_CHECK, OVERFIT_CHECK}
    assert failed[OVERFIT_CHECK].startswith("RuntimeError: ")


@EVERY_TASK
def test_checks_that_do_not_apply_say_so(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch)
    config = build_config(task)
    results = {
        check_result.name: check_result
        for check_result in check_model(config, SIZES, build_untrained_model(config, SIZES))
    }
    skipped = {name for name, result in results.items() if result.good is None}
    assert skipped == {WINDOW_CHECK} | ({FUTURE_CHECK, CACHE_CHECK} if task == "classify" else set())
    assert all(result.detail for result in results.values())


# ------------------------------------------------------------------------------------------ the model is left alone


@EVERY_TASK
def test_the_checked_model_and_the_callers_random_numbers_are_left_alone(task: TaskName) -> None:
    config, sizes = build_config(task, dropout=0.2), replace(SIZES, max_len=8)
    model = build_untrained_model(config, sizes).train()
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


@EVERY_TASK
def test_checks_give_the_same_findings_twice(monkeypatch: MonkeyPatch, task: TaskName) -> None:
    select_checks(monkeypatch)
    config = build_config(task, window=3)
    first, second = (list(check_model(config, SIZES, build_untrained_model(config, SIZES))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_the_caller_does_with_gradients_is_no_matter(monkeypatch: MonkeyPatch, mode: Any) -> None:
    select_checks(monkeypatch, GRADIENT_CHECK, INFLUENCE_CHECK)
    with mode():
        assert failed_checks(build_config("classify")) == {}


def test_a_check_that_crashes_counts_as_failed_and_names_the_error(monkeypatch: MonkeyPatch) -> None:
    def broken(self: Decoder, *args: Any) -> Tensor:
        raise ValueError("nothing works")

    monkeypatch.setattr(Decoder, "hidden_states", broken)
    failed = failed_checks(build_config("generate"))
    assert set(failed) == set(CHECKS) - {COUNT_CHECK}
    assert set(failed.values()) == {"ValueError: nothing works"}


# ------------------------------------------------------------------------------------------ planted faults


@dataclass(frozen=True)
class Fault:
    """What goes wrong, the check that is meant to find it, and those that may find it too."""

    task: TaskName
    apply: Callable[[MonkeyPatch, Any], None]
    expected_check: str
    other_checks: frozenset[str] = frozenset()
    model_settings: tuple[tuple[str, Any], ...] = ()
    max_len: int = 16


def make_fault(
    task: TaskName,
    apply: Callable[..., None],
    expected_check: str,
    *other_checks: str,
    max_len: int = 16,
    **model_settings: Any,
) -> Any:
    return Fault(task, apply, expected_check, frozenset(other_checks), tuple(model_settings.items()), max_len)


class OneAheadMask(CausalMask):
    """The mask off by one: the next token can be read."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q + 1) & (b >= 0)


def reads_one_ahead(patch: MonkeyPatch, model: Any) -> None:
    model.layer_masks = tuple(OneAheadMask() for _ in model.layer_masks)


def encoder_reads_back(patch: MonkeyPatch, model: Any) -> None:
    model.encoder.layer_masks = tuple(causal_mask for _ in model.encoder.layer_masks)


def encoder_reads_one_ahead(patch: MonkeyPatch, model: Any) -> None:
    reads_one_ahead(patch, model.encoder)


def reads_everything(patch: MonkeyPatch, model: Any) -> None:
    model.layer_masks = tuple(full_mask for _ in model.layer_masks)


def change_window(width: int, stack_name: str = "", layer: int = -1) -> Callable[[MonkeyPatch, Any], None]:
    """Another window than the settings say, in the encoder or the decoder, in one layer or in all."""

    def apply(patch: MonkeyPatch, model: Any) -> None:
        stack = getattr(model, stack_name) if stack_name else model
        wrong_mask = (full_mask if stack_name else causal_mask) & window_mask(width)
        stack.layer_masks = tuple(
            wrong_mask if layer in (-1, index) else mask for index, mask in enumerate(stack.layer_masks)
        )

    return apply


def change_kernel_mask(
    wrong_mask: AttentionMask, stack: str, layer: int = -1
) -> Callable[[MonkeyPatch, Any], None]:
    """The kernel goes by another rule than the one that is recorded; what batches hide stays hidden."""

    def apply(patch: MonkeyPatch, model: Any) -> None:
        def kernel(
            q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
        ) -> Tensor:
            batch_masks = [
                submask
                for submask in getattr(mask, "masks", ())
                if submask.batch_size > 1 or isinstance(submask, PackedMask)
            ]
            combined_mask = BeamMask(wrong_mask, mask.keep, mask.age) if isinstance(mask, BeamMask) else wrong_mask
            for submask in batch_masks:
                combined_mask = combined_mask & submask
            return tiled_sdpa_attention(q, k, v, combined_mask, score_fn, dropout)

        layers = model.attention_stacks()[stack]
        for attention_layer in layers if layer < 0 else layers[layer : layer + 1]:
            attention_layer.kernel = kernel

    return apply


def record_without_window(patch: MonkeyPatch, model: Any) -> None:
    original = recorder.attention_weights
    patch.setattr(recorder, "attention_weights", lambda q, k, mask, score_fn: original(q, k, causal_mask, score_fn))


def record_by_column(patch: MonkeyPatch, model: Any) -> None:
    original = recorder.attention_weights

    def by_column(q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction) -> Tensor:
        attention_weights = original(q, k, mask, score_fn)
        return attention_weights / attention_weights.sum(-2, keepdim=True).clamp(min=1e-9)

    patch.setattr(recorder, "attention_weights", by_column)


def softmax_over_queries(patch: MonkeyPatch, model: Any) -> None:
    def kernel(
        q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
    ) -> Tensor:
        scores = q @ repeat_kv(k, q).mT
        attention_weights = scores.masked_fill(~mask.dense(q.shape[-2], k.shape[-2], q.device), -1e9).softmax(
            dim=-2
        )
        return attention_weights @ repeat_kv(v, q)

    for stack in model.attention_stacks().values():
        for layer in stack:
            layer.kernel = kernel


def encoder_reads_padding(patch: MonkeyPatch, model: Any) -> None:
    original = Encoder.forward

    def ignore_padding(self: Encoder, tokens: Tensor, layout: Any = None, segments: Tensor | None = None) -> Tensor:
        return original(self, tokens, layout if isinstance(layout, PackedLayout) else None, segments)

    patch.setattr(Encoder, "forward", ignore_padding)


def cross_reads_padding(patch: MonkeyPatch, model: Any) -> None:
    patch.setattr(PaddedLayout, "cross_attention_mask", lambda self, query_layout: full_mask)


def decoder_reads_padding(patch: MonkeyPatch, model: Any) -> None:
    original = Decoder.hidden_states

    def ignore_padding(self: Decoder, tokens: Tensor, layout: Any = None, *rest: Any) -> Tensor:
        return original(self, tokens, layout if isinstance(layout, PackedLayout) else None, *rest)

    patch.setattr(Decoder, "hidden_states", ignore_padding)


def mean_over_padding(patch: MonkeyPatch, model: Any) -> None:
    patch.setattr(PaddedLayout, "mean", lambda self, x: x.mean(dim=1))


def unused_parameter(patch: MonkeyPatch, model: Any) -> None:
    model.forgotten = nn.Parameter(torch.ones(3))


def frozen_parameter(patch: MonkeyPatch, model: Any) -> None:
    next(model.parameters()).requires_grad_(False)


def detached_branch(patch: MonkeyPatch, model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "ffn"))
    block.ffn.register_forward_hook(lambda module, inputs, output: output.detach())


def nan_gradient(patch: MonkeyPatch, model: Any) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    next(module for module in model.modules() if hasattr(module, "ffn")).register_forward_hook(hook)


def head_shifted(patch: MonkeyPatch, model: Any) -> None:
    """A number too many, used and learned: only the count can tell."""
    head = model.get_submodule("lm_head" if hasattr(model, "lm_head") else "classification_head")
    head.more = nn.Parameter(torch.linspace(-1, 1, 1))
    head.register_forward_hook(lambda module, inputs, output: output * module.more)


def one_parameter_too_few(patch: MonkeyPatch, model: Any) -> None:
    block = next(module for module in model.modules() if hasattr(module, "ffn"))
    block.attn.out_proj.bias = None


def cache_forgets_the_newest_key(patch: MonkeyPatch, model: Any) -> None:
    original = DynamicKVStore.update

    def update_stale(self: DynamicKVStore, project: Any) -> Any:
        keys, values = original(self, project)
        return (keys[:, :, :-1], values[:, :, :-1]) if keys.shape[2] > 1 else (keys, values)

    patch.setattr(DynamicKVStore, "update", lambda self, project: update_stale(self, project))


def cache_is_overwritten(patch: MonkeyPatch, model: Any) -> None:
    """The first key becomes the newest one's copy once there is a past."""
    original = DynamicKVStore.update

    def update_overwritten(self: DynamicKVStore, project: Any) -> Any:
        past = self.length
        keys, values = original(self, project)
        if past:
            keys = torch.cat([keys[:, :, -1:], keys[:, :, 1:]], dim=2)
        return keys, values

    patch.setattr(DynamicKVStore, "update", update_overwritten)


def cache_gives_nan(patch: MonkeyPatch, model: Any) -> None:
    original = DynamicKVStore.update

    def update_nan(self: DynamicKVStore, project: Any) -> Any:
        past = self.length
        keys, values = original(self, project)
        return (keys, values * float("nan")) if past else (keys, values)

    patch.setattr(DynamicKVStore, "update", update_nan)


def positions_stand_still(patch: MonkeyPatch, model: Any) -> None:
    original = PaddedLayout.positions
    patch.setattr(PaddedLayout, "positions", lambda self, start, t, device: original(self, 0, t, device))


def select_is_ignored(patch: MonkeyPatch, model: Any) -> None:
    patch.setattr(KVCache, "select", lambda self, rows: None)


def packed_rows_read_one_another(patch: MonkeyPatch, model: Any) -> None:
    patch.setattr(PackedMask, "allows", lambda self, b, q, k: (b >= 0) & (q >= 0) & (k >= 0))
    patch.setattr(tiling, "mask_regions", lambda mask, t, s: (full_tile(t, s),))
    patch.setitem(KNOWN_MASKS, PackedMask, MaskInfo())


def packed_positions_run_on(patch: MonkeyPatch, model: Any) -> None:
    def running_positions(self: PackedLayout, start: int, t: int, device: torch.device) -> Tensor:
        return torch.arange(t, device=device) % SIZES.max_len

    patch.setattr(PackedLayout, "positions", running_positions)


def packed_mean_of_all(patch: MonkeyPatch, model: Any) -> None:
    patch.setattr(PackedLayout, "mean", lambda self, x: x.mean(dim=1).expand(len(self.lengths), -1))


def nan_in_a_padded_row(patch: MonkeyPatch, model: Any) -> None:
    """Rows after the first are no numbers where there is padding, as when a mask hides all of a row."""
    original = Decoder.forward

    def forward_nan(self: Decoder, tokens: Tensor, layout: Any = None, *rest: Any) -> Tensor:
        logits = original(self, tokens, layout, *rest)
        if isinstance(layout, Tensor) and not rest:
            logits = torch.cat([logits[:1], logits[1:] * float("nan")])
        return logits

    patch.setattr(Decoder, "forward", forward_nan)


def nan_in_recorded_weights(patch: MonkeyPatch, model: Any) -> None:
    """In every row but the first."""
    original = recorder.attention_weights

    def weights_nan(*args: Any) -> Tensor:
        attention_weights = original(*args)
        attention_weights[1:] = float("nan")
        return attention_weights

    patch.setattr(recorder, "attention_weights", weights_nan)


FAULTS: dict[str, Any] = {
    # who reads what
    "a decoder reads one ahead": make_fault(
        "generate", reads_one_ahead, FUTURE_CHECK, INFLUENCE_CHECK, PADDING_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "a target is read one ahead": make_fault(
        "translate", reads_one_ahead, FUTURE_CHECK, INFLUENCE_CHECK, PADDING_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "a decoder reads everything": make_fault(
        "generate", reads_everything, FUTURE_CHECK, INFLUENCE_CHECK, PADDING_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "a causal encoder reads one ahead": make_fault(
        "classify",
        encoder_reads_one_ahead,
        FUTURE_CHECK,
        INFLUENCE_CHECK,
        PADDING_CHECK,
        BATCH_CHECK,
        attention_direction="causal",
    ),
    "a source is read one ahead": make_fault(
        "translate",
        encoder_reads_one_ahead,
        FUTURE_CHECK,
        INFLUENCE_CHECK,
        PADDING_CHECK,
        BATCH_CHECK,
        attention_direction="causal",
    ),
    "a window too wide by one": make_fault("generate", change_window(5), WINDOW_CHECK, INFLUENCE_CHECK, window=4),
    "a window too wide in an encoder": make_fault(
        "classify", change_window(5, "encoder"), WINDOW_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too wide for a source": make_fault(
        "translate", change_window(5, "encoder"), WINDOW_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too wide for a target": make_fault(
        "translate", change_window(5), WINDOW_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too narrow by one": make_fault(
        "generate", change_window(3), FARTHEST_KEY_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too narrow in an encoder": make_fault(
        "classify", change_window(3, "encoder"), FARTHEST_KEY_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too narrow for a target": make_fault(
        "translate", change_window(3), FARTHEST_KEY_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too narrow for a source": make_fault(
        "translate", change_window(3, "encoder"), FARTHEST_KEY_CHECK, INFLUENCE_CHECK, window=4
    ),
    "a window too narrow in one layer": make_fault(
        "generate", change_window(3, layer=0), FARTHEST_KEY_CHECK, INFLUENCE_CHECK, layer_windows=(4, 6)
    ),
    "no window at all": make_fault("generate", change_window(-1), WINDOW_CHECK, INFLUENCE_CHECK, window=4),
    "a long window too wide": make_fault(
        "generate", change_window(17), WINDOW_CHECK, INFLUENCE_CHECK, window=16, max_len=512
    ),
    "all layers read only five": make_fault("generate", change_window(5), FARTHEST_KEY_CHECK, INFLUENCE_CHECK),
    "all layers of an encoder read only five": make_fault(
        "classify", change_window(5, "encoder"), FARTHEST_KEY_CHECK, INFLUENCE_CHECK
    ),
    "the first layer reads only five": make_fault(
        "generate", change_window(5, layer=0), FARTHEST_KEY_CHECK, INFLUENCE_CHECK
    ),
    "an encoder reads only back": make_fault("classify", encoder_reads_back, FARTHEST_KEY_CHECK, INFLUENCE_CHECK),
    "a kernel that reads only back": make_fault(
        "classify", change_kernel_mask(causal_mask, "encoder"), KERNEL_CHECK, INFLUENCE_CHECK, BATCH_CHECK
    ),
    "a kernel of one layer that reads only five": make_fault(
        "generate",
        change_kernel_mask(causal_mask & window_mask(5), "decoder", layer=0),
        KERNEL_CHECK,
        INFLUENCE_CHECK,
    ),
    # kernels that do not do what is recorded
    "a kernel without the window": make_fault(
        "generate", change_kernel_mask(causal_mask, "decoder"), INFLUENCE_CHECK, KERNEL_CHECK, window=4
    ),
    "a kernel with a wider window": make_fault(
        "generate",
        change_kernel_mask(causal_mask & window_mask(5), "decoder"),
        INFLUENCE_CHECK,
        KERNEL_CHECK,
        window=4,
    ),
    "a kernel without the window in many layers": make_fault(
        "generate",
        change_kernel_mask(causal_mask, "decoder"),
        INFLUENCE_CHECK,
        KERNEL_CHECK,
        window=8,
        n_layers=4,
        max_len=32,
    ),
    "a kernel with a narrower window": make_fault(
        "generate",
        change_kernel_mask(causal_mask & window_mask(3), "decoder"),
        INFLUENCE_CHECK,
        KERNEL_CHECK,
        window=4,
    ),
    "an encoder's kernel without the window": make_fault(
        "classify", change_kernel_mask(full_mask, "encoder"), INFLUENCE_CHECK, KERNEL_CHECK, window=4
    ),
    "a source's kernel without the window": make_fault(
        "translate", change_kernel_mask(full_mask, "encoder"), INFLUENCE_CHECK, KERNEL_CHECK, window=4
    ),
    "a kernel that reads one ahead": make_fault(
        "generate",
        change_kernel_mask(OneAheadMask(), "decoder"),
        INFLUENCE_CHECK,
        KERNEL_CHECK,
        BATCH_CHECK,
        CACHE_CHECK,
    ),
    "a source's kernel that reads ahead": make_fault(
        "translate",
        change_kernel_mask(full_mask, "encoder"),
        INFLUENCE_CHECK,
        KERNEL_CHECK,
        attention_direction="causal",
    ),
    "a recording without the window": make_fault("generate", record_without_window, WINDOW_CHECK, window=4),
    # softmax
    "shares of a column": make_fault("classify", record_by_column, SUMS_CHECK),
    "shares of a column, ahead too": make_fault("generate", record_by_column, SUMS_CHECK),
    "a softmax over queries": make_fault(
        "generate", softmax_over_queries, KERNEL_CHECK, INFLUENCE_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "a softmax over queries in an encoder": make_fault(
        "classify", softmax_over_queries, KERNEL_CHECK, BATCH_CHECK, INFLUENCE_CHECK
    ),
    "weights that are no numbers": make_fault(
        "generate", nan_in_recorded_weights, SUMS_CHECK, PADDING_CHECK, FUTURE_CHECK
    ),
    # padding and packing
    "an encoder reads padding": make_fault(
        "classify", encoder_reads_padding, PADDING_CHECK, INFLUENCE_CHECK, BATCH_CHECK
    ),
    "padding of a source is read": make_fault(
        "translate", encoder_reads_padding, PADDING_CHECK, INFLUENCE_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "padding of a source is looked at": make_fault(
        "translate", cross_reads_padding, PADDING_CHECK, INFLUENCE_CHECK, BATCH_CHECK, CACHE_CHECK
    ),
    "prompts read padding": make_fault("generate", decoder_reads_padding, CACHE_CHECK),
    "a mean over padding": make_fault("classify", mean_over_padding, BATCH_CHECK, INFLUENCE_CHECK),
    "packed rows read one another": make_fault("classify", packed_rows_read_one_another, BATCH_CHECK),
    "packed texts read one another": make_fault("generate", packed_rows_read_one_another, BATCH_CHECK),
    "packed pairs read one another": make_fault("translate", packed_rows_read_one_another, BATCH_CHECK),
    "packed positions run on": make_fault("generate", packed_positions_run_on, BATCH_CHECK),
    "a packed mean of all": make_fault("classify", packed_mean_of_all, BATCH_CHECK),
    "a padded row that is no number": make_fault(
        "generate", nan_in_a_padded_row, BATCH_CHECK, INFLUENCE_CHECK, GRADIENT_CHECK
    ),
    # parameters
    "an unused parameter": make_fault("classify", unused_parameter, GRADIENT_CHECK, COUNT_CHECK),
    "a frozen parameter": make_fault("generate", frozen_parameter, GRADIENT_CHECK),
    **{f"a detached branch, {task}": make_fault(task, detached_branch, GRADIENT_CHECK) for task in TASK_NAMES},
    **{
        f"a gradient that is no number, {task}": make_fault(task, nan_gradient, GRADIENT_CHECK)
        for task in TASK_NAMES
    },
    **{f"a number too many, {task}": make_fault(task, head_shifted, COUNT_CHECK) for task in TASK_NAMES},
    **{f"a bias too few, {task}": make_fault(task, one_parameter_too_few, COUNT_CHECK) for task in TASK_NAMES},
    # decoding
    "a cache forgets its newest key": make_fault("generate", cache_forgets_the_newest_key, CACHE_CHECK),
    "a writer's cache forgets its newest key": make_fault("translate", cache_forgets_the_newest_key, CACHE_CHECK),
    "a cache is overwritten": make_fault("generate", cache_is_overwritten, CACHE_CHECK),
    "a cache of no numbers": make_fault("generate", cache_gives_nan, CACHE_CHECK),
    "a writer's positions stand still": make_fault("translate", positions_stand_still, CACHE_CHECK),
    "positions stand still": make_fault("generate", positions_stand_still, CACHE_CHECK),
    "select is ignored": make_fault("generate", select_is_ignored, CACHE_CHECK),
    "a writer's select is ignored": make_fault("translate", select_is_ignored, CACHE_CHECK),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_the_check_meant_for_it(monkeypatch: MonkeyPatch, name: str) -> None:
    fault_case: Fault = FAULTS[name]
    select_checks(monkeypatch)
    config, sizes = (
        build_config(fault_case.task, **dict(fault_case.model_settings)),
        replace(SIZES, max_len=fault_case.max_len),
    )
    model = build_untrained_model(config, sizes)
    fault_case.apply(monkeypatch, model)
    failed = failed_checks(config, sizes, model)
    assert fault_case.expected_check in failed
    assert set(failed) <= {fault_case.expected_check} | fault_case.other_checks
