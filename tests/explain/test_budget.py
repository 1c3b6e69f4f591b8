"""What is counted on paper is what is built: parameters exactly, memory and operations as torch measures them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from triform.config import Config, ModelConfig, Sizes, TaskName
from triform.errors import ConfigError
from triform.explain import costs as accounts
from triform.explain.costs import Costs, Use, costs, pairs, tidy
from triform.explain.reconcile import PUBLISHED, applies, reconcile
from triform.models.budget import Budget, budget, in_numbers, value_of
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn import kernels, pieces
from triform.presets import REPORTED_SIZES, preset

FORMS: dict[TaskName, type[nn.Module]] = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
EVERY_FORM = pytest.mark.parametrize("task", FORMS)
SMALL = ModelConfig(d_model=64, d_ff=256, n_layers=2, n_heads=4, dropout=0.1)
SIZES = Sizes(vocab_size=300, max_len=512, n_labels=3)


def built(config: Config, sizes: Sizes, device: str = "meta") -> nn.Module:
    with torch.device(device):
        return FORMS[config.task](config.model, sizes)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# ------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("speeches-classifier", 576_467), ("speeches-lm", 863_243), ("gpt2-small", 124_439_808)],
)
def test_the_reported_counts_come_out(name: str, parameters: int) -> None:
    assert budget(preset(name), REPORTED_SIZES[name]).total == parameters


@pytest.mark.parametrize("name", REPORTED_SIZES)
def test_every_preset_is_counted_as_it_is_built(name: str) -> None:
    config, sizes = preset(name), REPORTED_SIZES[name]
    assert budget(config, sizes).total == count(built(config, sizes))


def test_the_original_transformer_by_component() -> None:
    counted = budget(preset("transformer-base"), Sizes(vocab_size=37_000, max_len=256))
    parts = {part.name: part for part in counted.parts}
    assert parts["source embedding"].total == 37_000 * 512
    assert parts["target embedding"].total == parts["output"].total == 0  # one table serves all three
    assert counted.shared == 2 * 37_000 * 512
    each = {line.name: line.each for line in parts["decoder"].lines}
    for kind in ("self-attention", "cross-attention"):
        assert sum(size for name, size in each.items() if name.startswith(kind)) == 1_050_624
    assert each["feedforward: up"] + each["feedforward: down"] == 2_099_712
    assert each["norms"] == 1_024
    assert parts["encoder"].per_layer == 1_050_624 + 2_099_712 + 2 * 1_024
    assert parts["decoder"].per_layer == 2 * 1_050_624 + 2_099_712 + 3 * 1_024
    assert counted.total == 37_000 * 512 + 6 * (parts["encoder"].per_layer + parts["decoder"].per_layer)


@st.composite
def configs(draw: Callable[[Any], Any]) -> tuple[Config, Sizes]:
    """Any settings that fit together; what does not is drawn again."""
    choose = {
        "d_model": [8, 12, 16, 24],
        "d_ff": [1, 5, 32],
        "n_layers": [1, 2, 4],
        "n_heads": [1, 2, 4],
        "n_kv_heads": [0, 1, 2, 4],
        "positions": ["learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative", "t5", "none"],
        "max_distance": [0, 3, 40],
        "n_buckets": [4, 8, 32],
        "score": ["scaled_dot", "dot", "cosine", "additive"],
        "reach": ["auto", "causal"],
        "norm": ["layer", "rms"],
        "norm_position": ["pre", "post"],
        "activation": ["relu", "gelu", "gelu_tanh", "silu", "swiglu"],
        "head_hidden": [0, 7],
        "pair_rows": [0, 0, 0, 9],
        "pooling": ["mean", "first", "last"],
        "segments": [0, 2],
        "out_bias": ["auto", "yes", "no"],
        "embedding_norm": [True, False],
        **{name: [True, False] for name in ("final_norm", "bias", "qkv_bias", "tie_embeddings", "head_bias")},
    }
    drawn = {name: draw(st.sampled_from(options)) for name, options in choose.items()}
    try:
        config = Config(task=draw(st.sampled_from(list(FORMS))), model=ModelConfig(**drawn))
    except ConfigError:
        reject()
    second = draw(st.sampled_from([0, 11])) if config.task == "translate" else 0
    return config, Sizes(vocab_size=13, max_len=6, n_labels=3, target_vocab_size=second)


@settings(max_examples=300)
@given(configs())
def test_any_settings_are_counted_as_they_are_built(drawn: tuple[Config, Sizes]) -> None:
    counted = budget(*drawn)
    assert counted.total == count(built(*drawn))
    for _, line in counted.every_line():
        values = {letter.sign: letter.value for letter in counted.letters}
        values["(2k+1)"] = 2 * values.get("k", 0) + 1
        assert value_of(line.formula, values) == line.each  # with no other letters than those explained
        assert in_numbers(line.formula, values) == line.numbers


def test_heads_do_not_change_the_size_of_attention() -> None:
    totals = {heads: budget(Config(model=replace(SMALL, n_heads=heads)), SIZES).total for heads in (1, 4, 64)}
    assert len(set(totals.values())) == 1


@pytest.mark.parametrize(
    ("config", "sizes", "option"),
    [
        (Config(model=SMALL), replace(SIZES, n_labels=0), "--labels"),
        (Config(task="generate", model=SMALL), replace(SIZES, vocab_size=0), "--vocab-size"),
        (Config(task="generate", model=SMALL), replace(SIZES, max_len=0), "--max-len"),
        (Config(model=replace(SMALL, d_model=0)), SIZES, "--set model.d_model="),
    ],
)
def test_a_size_that_is_missing_is_asked_for_by_its_option(config: Config, sizes: Sizes, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        budget(config, sizes)


def test_counting_needs_no_torch() -> None:
    code = "import sys, triform.explain.costs, triform.explain.reconcile; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ------------------------------------------------------------------------------------------ the published count

PAPER = preset("transformer-base")
PAPER_SIZES = Sizes(vocab_size=30_000, max_len=256)
STYLES: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": False},
    {"bias": False},
    {"qkv_bias": False, "head_bias": True, "final_norm": True},
    {"n_kv_heads": 2, "activation": "swiglu", "d_ff": 1_365, "norm": "rms", "positions": "t5"},
    {"score": "cosine", "positions": "relative"},
    {"score": "additive", "positions": "learned", "d_ff": 100},
]


def walk(counted: Budget) -> dict[str, int]:
    return {step.name: step.change for step in reconcile(counted)}


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("second", [0, 30_000])
def test_the_walk_from_the_published_sum_ends_at_the_exact_total(style: dict[str, Any], second: int) -> None:
    config = replace(PAPER, model=replace(PAPER.model, **style))
    sizes = replace(PAPER_SIZES, target_vocab_size=second)
    assert applies(config, sizes)
    steps = reconcile(budget(config, sizes))
    assert [step.change for step in steps[:4]] == [15_360_000, 12_582_912, 25_251_840, 15_360_000]
    assert steps[3].sum == PUBLISHED == 68_554_752
    assert steps[4].change == -55_296
    so_far = 0
    for step in steps:
        so_far += step.change
        assert step.sum == so_far
        assert step.change
    assert so_far == count(built(config, sizes))


def test_the_walk_names_what_was_left_out_and_what_is_shared() -> None:
    changes = walk(budget(PAPER, PAPER_SIZES))
    assert changes["cross-attention weights"] == 6 * 4 * 512**2
    assert changes["self-attention biases"] == 12 * 4 * 512
    assert changes["cross-attention biases"] == 6 * 4 * 512
    assert changes["norms"] == (6 * 2 + 6 * 3) * 2 * 512
    assert changes["output weights"] == -30_000 * 512
    apart = walk(budget(replace(PAPER, model=replace(PAPER.model, tie_embeddings=False)), PAPER_SIZES))
    assert "output weights" not in apart
    assert apart["second token table"] == 30_000 * 512


def test_only_the_published_sizes_are_reconciled() -> None:
    assert not applies(PAPER, replace(PAPER_SIZES, vocab_size=37_000))
    assert not applies(PAPER, replace(PAPER_SIZES, target_vocab_size=20_000))
    assert not applies(replace(PAPER, task="generate"), PAPER_SIZES)
    assert not applies(replace(PAPER, model=replace(PAPER.model, n_layers=4)), PAPER_SIZES)


# ------------------------------------------------------------------------------------------ memory


def step_of(config: Config, model: nn.Module, batch: int, length: int, device: str) -> Tensor:
    """The loss of one training step on random tokens."""
    tokens, labels = torch.randint(3, (batch, length), device=device), torch.randint(3, (batch,), device=device)
    scores = model(tokens, tokens) if config.task == "translate" else model(tokens)
    targets = labels if config.task == "classify" else tokens.flatten()
    return F.cross_entropy(scores.flatten(0, -2).float(), targets, reduction="sum")


def kept_for_backward(model: nn.Module, step: Callable[[], Tensor]) -> int:
    """Bytes of every storage that autograd keeps, each once, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def kept_on_paper(cost: Costs) -> int:
    copies = [item for item in cost.training if item.name == "weights in bf16"]
    return sum(item.total for item in (*cost.activations, *copies) if item.note != "passing")


def measured(config: Config, batch: int, length: int, precision: str = "fp32", device: str = "cpu") -> int:
    model = built(config, SIZES, device).train()

    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return step_of(config, model, batch, length, device)

    return kept_for_backward(model, step)


SHAPES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 4, 48),
    ({"dropout": 0.0, "activation": "relu"}, 2, 100),
    ({"norm_position": "post", "final_norm": False}, 3, 32),
    ({"norm": "rms", "activation": "swiglu", "n_kv_heads": 2, "positions": "rotary"}, 4, 48),
    ({"positions": "alibi", "d_model": 32, "n_layers": 4}, 8, 40),
    ({"positions": "t5"}, 4, 64),
    ({"positions": "relative"}, 4, 48),
    ({"score": "cosine", "positions": "sinusoidal"}, 4, 48),
    ({"window": 8}, 4, 48),
    ({"window": 16}, 2, 256),
    ({"head_hidden": 32}, 16, 8),
    ({"head_hidden": 32, "head_activation": "tanh", "pooling": "first", "segments": 2}, 16, 8),
    ({"embedding_norm": True, "activation": "silu", "d_ff": 64}, 4, 48),
    ({"embedding_norm": True, "norm": "rms", "n_layers": 1}, 4, 48),
]


@EVERY_FORM
@pytest.mark.parametrize(("style", "batch", "length"), SHAPES, ids=str)
def test_activations_are_what_autograd_keeps(
    task: TaskName, style: dict[str, Any], batch: int, length: int
) -> None:
    config = Config(task=task, model=replace(SMALL, **style))
    use = Use(batch_size=batch, length=length, gpu=False)
    assert kept_on_paper(costs(config, SIZES, use)) == pytest.approx(measured(config, batch, length), rel=0.05)


@EVERY_FORM
def test_half_precision_keeps_what_autocast_makes_of_it(task: TaskName) -> None:
    config = Config(task=task, model=SMALL)
    on_paper = kept_on_paper(costs(config, SIZES, Use(batch_size=4, length=48, gpu=False, precision="bf16")))
    assert on_paper == pytest.approx(measured(config, 4, 48, precision="bf16"), rel=0.05)


@EVERY_FORM
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_keeps_what_is_said_of_it(task: TaskName, precision: Any) -> None:
    config = Config(task=task, model=SMALL)
    on_paper = kept_on_paper(costs(config, SIZES, Use(batch_size=8, length=64, precision=precision)))
    assert on_paper == pytest.approx(measured(config, 8, 64, precision, "cuda"), rel=0.15)


def test_attention_written_out_is_kept_only_while_it_is_small() -> None:
    config = Config(task="generate", model=replace(SMALL, positions="relative"))

    def weights(length: int) -> bool:
        cost = costs(config, SIZES, Use(batch_size=64, length=length, gpu=False))
        return any(item.name.endswith(", weights") for item in cost.activations)

    assert weights(32)
    assert not weights(512)  # the kernel computes them again


def test_the_kernels_limits_are_known_by_their_numbers() -> None:
    assert accounts.MOST_AT_ONCE == (kernels.MOST_AT_ONCE, kernels.MOST_AT_ONCE_ON_GPU)
    assert accounts.SHORTEST == (pieces.SHORTEST, pieces.SHORTEST_ON_GPU)
    assert accounts.WORTH_IT == pieces.WORTH_IT


@pytest.mark.parametrize(
    ("optimizer", "momentum", "copies"), [("adamw", 0.9, 2), ("adam", 0.9, 2), ("sgd", 0.9, 1), ("sgd", 0.0, 0)]
)
def test_the_optimizers_state_is_what_torch_keeps(optimizer: Any, momentum: float, copies: int) -> None:
    config = Config(model=SMALL)
    use = Use(batch_size=2, length=8, optimizer=optimizer, momentum=momentum)
    state = {item.name: item.total for item in costs(config, SIZES, use).training}[f"state of {optimizer}"]
    assert state == copies * 4 * budget(config, SIZES).total
    model = built(config, SIZES, "cpu")
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    made = (
        torch.optim.SGD(model.parameters(), momentum=momentum)
        if optimizer == "sgd"
        else kinds[optimizer](model.parameters())
    )
    step_of(config, model, 2, 8, "cpu").backward()
    made.step()
    held = [value for each in made.state.values() for value in each.values() if isinstance(value, Tensor)]
    assert sum(value.numel() * 4 for value in held if value.ndim) == state


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_the_cache_of_a_token_is_two_vectors_a_layer_and_shared_head(shared: int) -> None:
    model = replace(SMALL, n_kv_heads=shared, window=8)
    for task, kinds in (
        ("classify", []),
        ("generate", ["a token"]),
        ("translate", ["a source token", "a target token"]),
    ):
        cost = costs(Config(task=task, model=model), SIZES, Use(batch_size=3, length=20))
        assert cost.cache_per_token == tuple((kind, 2 * 2 * (shared or 4) * 16 * 4) for kind in kinds)
        cache = sum(item.total for item in cost.inference if item.name.startswith("keys"))
        assert cache == 3 * 20 * sum(size for _, size in cost.cache_per_token)


# ------------------------------------------------------------------------------------------ operations


def operations(config: Config, batch: int, length: int) -> int:
    """Torch's own count, on a device that computes nothing."""
    model = built(config, SIZES)
    tokens = torch.zeros(batch, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens) if config.task == "translate" else model(tokens)
    return int(counter.get_total_flops())


VARIANTS: list[dict[str, Any]] = [
    *({}, {"n_kv_heads": 1}, {"activation": "swiglu"}, {"head_hidden": 10}, {"tie_embeddings": False}),
    *({"positions": kind} for kind in ("sinusoidal", "rotary", "alibi", "t5", "relative", "none")),
    *({"score": kind} for kind in ("dot", "cosine")),
]


@EVERY_FORM
@pytest.mark.parametrize("style", VARIANTS, ids=str)
def test_operations_are_what_torch_counts(task: TaskName, style: dict[str, Any]) -> None:
    config = Config(task=task, model=replace(SMALL, **style))
    cost = costs(config, SIZES, Use(batch_size=2, length=100))
    assert 2 * cost.forward == pytest.approx(operations(config, 2, 100), rel=0.01)
    assert cost.step == 3 * 2 * cost.forward
    per_text = sum(work.total for work in cost.work if work.per == "text")
    assert sum(100 * each for each in cost.per_token.values()) + per_text == cost.forward


@EVERY_FORM
def test_a_window_costs_no_less_than_it_needs_and_no_more_than_the_whole(task: TaskName) -> None:
    config = Config(task=task, model=replace(SMALL, window=8))
    cost = costs(config, SIZES, Use(batch_size=1, length=400))
    assert cost.forward_needed < operations(config, 1, 400) < cost.forward


@given(st.integers(1, 30), st.integers(1, 40) | st.just(-1), st.booleans())
def test_pairs_are_those_that_the_mask_leaves(length: int, window: int, causal: bool) -> None:
    left = sum(
        (not causal or key <= query) and (window < 0 or abs(query - key) < window)
        for query in range(length)
        for key in range(length)
    )
    assert pairs(length, window, causal=causal) == left


def test_like_terms_are_added_up() -> None:
    assert tidy("3·L·d + 2·L·d + f") == "5·L·d + f"
    assert tidy("1·L·f + L·d") == "L·f + L·d"
