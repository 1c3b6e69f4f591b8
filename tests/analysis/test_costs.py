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

from triform.analysis import costs as accounts
from triform.analysis.costs import Costs, Workload, count_attended_pairs, estimate_costs, simplify
from triform.analysis.parameters import ParameterBudget, count_parameters, evaluate_formula, format_formula
from triform.analysis.reported_counts import PUBLISHED_COUNT, is_published_model, reconcile_counts
from triform.config import Config, DataSizes, ModelConfig, TaskName, TrainConfig
from triform.config.presets import REPORTED_SIZES, preset
from triform.errors import ConfigError
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.nn.kernels import sdpa, tiling
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.training.optim import build_optimizer

MODEL_CLASSES: dict[TaskName, type[nn.Module]] = {"classify": Classifier, "generate": Decoder, "translate": Seq2Seq}
EVERY_TASK = pytest.mark.parametrize("task", MODEL_CLASSES)
SMALL_MODEL = ModelConfig(d_model=64, d_ff=256, n_layers=2, n_heads=4, dropout=0.1)
SIZES = DataSizes(vocab_size=300, max_len=512, n_labels=3)


def build_model(config: Config, sizes: DataSizes, device: str = "meta") -> nn.Module:
    with torch.device(device):
        return use_fast_kernels(MODEL_CLASSES[config.task](config.model, sizes))


def count_model_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# ------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("speeches-classifier", 576_467), ("speeches-lm", 863_243), ("gpt2-small", 124_439_808)],
)
def test_the_reported_counts_come_out(name: str, parameters: int) -> None:
    assert count_parameters(preset(name), REPORTED_SIZES[name]).total == parameters


@pytest.mark.parametrize("name", REPORTED_SIZES)
def test_every_preset_is_counted_as_it_is_built(name: str) -> None:
    config, sizes = preset(name), REPORTED_SIZES[name]
    assert count_parameters(config, sizes).total == count_model_parameters(build_model(config, sizes))


def test_the_original_transformer_by_component() -> None:
    param_budget = count_parameters(preset("transformer-base"), DataSizes(vocab_size=37_000, max_len=256))
    groups = {group.name: group for group in param_budget.groups}
    assert groups["source embedding"].total == 37_000 * 512
    assert groups["target embedding"].total == groups["output"].total == 0  # one table serves all three
    assert param_budget.shared == 2 * 37_000 * 512
    sizes_by_name = {row.name: row.per_instance for row in groups["decoder"].lines}
    for kind in ("self-attention", "cross-attention"):
        assert sum(size for name, size in sizes_by_name.items() if name.startswith(kind)) == 1_050_624
    assert sizes_by_name["feedforward: up"] + sizes_by_name["feedforward: down"] == 2_099_712
    assert sizes_by_name["norms"] == 1_024
    assert groups["encoder"].per_layer == 1_050_624 + 2_099_712 + 2 * 1_024
    assert groups["decoder"].per_layer == 2 * 1_050_624 + 2_099_712 + 3 * 1_024
    assert param_budget.total == 37_000 * 512 + 6 * (groups["encoder"].per_layer + groups["decoder"].per_layer)


@st.composite
def configs(draw: Callable[[Any], Any]) -> tuple[Config, DataSizes]:
    """Any settings that fit together; what does not is drawn again."""
    choices = {
        "d_model": [8, 12, 16, 24],
        "d_ff": [1, 5, 32],
        "n_layers": [1, 2, 4],
        "n_heads": [1, 2, 4],
        "n_kv_heads": [0, 1, 2, 4],
        "positions": ["learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "relative", "t5", "none"],
        "max_distance": [0, 3, 40],
        "n_buckets": [4, 8, 32],
        "attention_score": ["scaled_dot", "dot", "cosine", "additive"],
        "attention_direction": ["auto", "causal"],
        "norm": ["layer", "rms"],
        "norm_position": ["pre", "post"],
        "activation": ["relu", "gelu", "gelu_tanh", "silu", "swiglu"],
        "head_hidden": [0, 7],
        "bigram_buckets": [0, 0, 0, 9],
        "pooling": ["mean", "first", "last"],
        "n_segments": [0, 2],
        "out_bias": ["auto", "yes", "no"],
        "embedding_norm": [True, False],
        **{name: [True, False] for name in ("final_norm", "bias", "qkv_bias", "tie_embeddings", "head_bias")},
    }
    settings = {name: draw(st.sampled_from(options)) for name, options in choices.items()}
    try:
        config = Config(task=draw(st.sampled_from(list(MODEL_CLASSES))), model=ModelConfig(**settings))
    except ConfigError:
        reject()
    target_vocab_size = draw(st.sampled_from([0, 11])) if config.task == "translate" else 0
    return config, DataSizes(vocab_size=13, max_len=6, n_labels=3, target_vocab_size=target_vocab_size)


@settings(max_examples=150)
@given(configs())
def test_any_settings_are_counted_as_they_are_built(config_and_sizes: tuple[Config, DataSizes]) -> None:
    param_budget = count_parameters(*config_and_sizes)
    assert param_budget.total == count_model_parameters(build_model(*config_and_sizes))
    for _, row in param_budget.iter_rows():
        values = {symbol.name: symbol.value for symbol in param_budget.symbols}
        values["(2k+1)"] = 2 * values.get("k", 0) + 1
        # With no other letters than those explained.
        assert evaluate_formula(row.formula, values) == row.per_instance
        assert format_formula(row.formula, values) == row.numbers


def test_heads_do_not_change_the_size_of_attention() -> None:
    totals = {
        heads: count_parameters(Config(model=replace(SMALL_MODEL, n_heads=heads)), SIZES).total
        for heads in (1, 4, 64)
    }
    assert len(set(totals.values())) == 1


@pytest.mark.parametrize(
    ("config", "sizes", "option"),
    [
        (Config(model=SMALL_MODEL), replace(SIZES, n_labels=0), "--labels"),
        (Config(task="generate", model=SMALL_MODEL), replace(SIZES, vocab_size=0), "--vocab-size"),
        (Config(task="generate", model=SMALL_MODEL), replace(SIZES, max_len=0), "--max-len"),
        (Config(model=replace(SMALL_MODEL, d_model=0)), SIZES, "--set model.d_model="),
    ],
)
def test_a_size_that_is_missing_is_asked_for_by_its_option(config: Config, sizes: DataSizes, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        count_parameters(config, sizes)


def test_counting_needs_no_torch() -> None:
    code = "import sys, triform.analysis.costs, triform.analysis.reported_counts; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "False\n"


# ------------------------------------------------------------------------------------------ the published count

PAPER_CONFIG = preset("transformer-base")
PAPER_SIZES = DataSizes(vocab_size=30_000, max_len=256)
MODEL_VARIATIONS: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": False},
    {"bias": False},
    {"qkv_bias": False, "head_bias": True, "final_norm": True},
    {"n_kv_heads": 2, "activation": "swiglu", "d_ff": 1_365, "norm": "rms", "positions": "t5"},
    {"attention_score": "cosine", "positions": "relative"},
    {"attention_score": "additive", "positions": "learned", "d_ff": 100},
]


def reconciliation_changes(param_budget: ParameterBudget) -> dict[str, int]:
    return {step.name: step.change for step in reconcile_counts(param_budget)}


@pytest.mark.parametrize("model_settings", MODEL_VARIATIONS, ids=str)
@pytest.mark.parametrize("target_vocab_size", [0, 30_000])
def test_the_walk_from_the_published_sum_ends_at_the_exact_total(
    model_settings: dict[str, Any], target_vocab_size: int
) -> None:
    config = replace(PAPER_CONFIG, model=replace(PAPER_CONFIG.model, **model_settings))
    sizes = replace(PAPER_SIZES, target_vocab_size=target_vocab_size)
    assert is_published_model(config, sizes)
    steps = reconcile_counts(count_parameters(config, sizes))
    assert [step.change for step in steps[:4]] == [15_360_000, 12_582_912, 25_251_840, 15_360_000]
    assert steps[3].sum == PUBLISHED_COUNT == 68_554_752
    assert steps[4].change == -55_296
    running_total = 0
    for step in steps:
        running_total += step.change
        assert step.sum == running_total
        assert step.change
    assert running_total == count_model_parameters(build_model(config, sizes))


def test_the_walk_names_what_was_left_out_and_what_is_shared() -> None:
    changes = reconciliation_changes(count_parameters(PAPER_CONFIG, PAPER_SIZES))
    assert changes["cross-attention weights"] == 6 * 4 * 512**2
    assert changes["self-attention biases"] == 12 * 4 * 512
    assert changes["cross-attention biases"] == 6 * 4 * 512
    assert changes["norms"] == (6 * 2 + 6 * 3) * 2 * 512
    assert changes["output weights"] == -30_000 * 512
    untied_changes = reconciliation_changes(
        count_parameters(
            replace(PAPER_CONFIG, model=replace(PAPER_CONFIG.model, tie_embeddings=False)), PAPER_SIZES
        )
    )
    assert "output weights" not in untied_changes
    assert untied_changes["second token table"] == 30_000 * 512


def test_only_the_published_sizes_are_reconciled() -> None:
    assert not is_published_model(PAPER_CONFIG, replace(PAPER_SIZES, vocab_size=37_000))
    assert not is_published_model(PAPER_CONFIG, replace(PAPER_SIZES, target_vocab_size=20_000))
    assert not is_published_model(replace(PAPER_CONFIG, task="generate"), PAPER_SIZES)
    assert not is_published_model(replace(PAPER_CONFIG, model=replace(PAPER_CONFIG.model, n_layers=4)), PAPER_SIZES)


# ------------------------------------------------------------------------------------------ memory


def compute_step_loss(config: Config, model: nn.Module, batch: int, length: int, device: str) -> Tensor:
    """The loss of one training step on random tokens."""
    tokens, labels = torch.randint(3, (batch, length), device=device), torch.randint(3, (batch,), device=device)
    logits = model(tokens, tokens) if config.task == "translate" else model(tokens)
    targets = labels if config.task == "classify" else tokens.flatten()
    return F.cross_entropy(logits.flatten(0, -2).float(), targets, reduction="sum")


def measure_saved_bytes(model: nn.Module, step: Callable[[], Tensor]) -> int:
    """Bytes of every storage that autograd keeps, each once, parameters left out."""
    parameter_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved_tensors: dict[int, Tensor] = {}

    def record_tensor(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameter_storages:
            saved_tensors[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_tensor, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors.values())


def estimate_saved_bytes(cost: Costs) -> int:
    bf16_copies = [item for item in cost.training if item.name == "weights in bf16"]
    return sum(item.total for item in (*cost.activations, *bf16_copies) if item.note != "temporary")


def measure_step_bytes(
    config: Config, batch: int, length: int, precision: str = "fp32", device: str = "cpu"
) -> int:
    model = build_model(config, SIZES, device).train()

    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return compute_step_loss(config, model, batch, length, device)

    return measure_saved_bytes(model, step)


STEP_SHAPES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 4, 48),
    ({"dropout": 0.0, "activation": "relu"}, 2, 100),
    ({"norm_position": "post", "final_norm": False}, 3, 32),
    ({"norm": "rms", "activation": "swiglu", "n_kv_heads": 2, "positions": "rotary"}, 4, 48),
    ({"positions": "alibi", "d_model": 32, "n_layers": 4}, 8, 40),
    ({"positions": "t5"}, 4, 64),
    ({"positions": "relative"}, 4, 48),
    ({"attention_score": "cosine", "positions": "sinusoidal"}, 4, 48),
    ({"window": 8}, 4, 48),
    ({"window": 16}, 2, 256),
    ({"head_hidden": 32}, 16, 8),
    ({"head_hidden": 32, "head_activation": "tanh", "pooling": "first", "n_segments": 2}, 16, 8),
    ({"embedding_norm": True, "activation": "silu", "d_ff": 64}, 4, 48),
    ({"embedding_norm": True, "norm": "rms", "n_layers": 1}, 4, 48),
]


@EVERY_TASK
@pytest.mark.parametrize(("model_settings", "batch", "length"), STEP_SHAPES, ids=str)
def test_activations_are_what_autograd_keeps(
    task: TaskName, model_settings: dict[str, Any], batch: int, length: int
) -> None:
    config = Config(task=task, model=replace(SMALL_MODEL, **model_settings))
    workload = Workload(batch_size=batch, length=length, gpu=False)
    assert estimate_saved_bytes(estimate_costs(config, SIZES, workload)) == pytest.approx(
        measure_step_bytes(config, batch, length), rel=0.05
    )


@EVERY_TASK
def test_half_precision_keeps_what_autocast_makes_of_it(task: TaskName) -> None:
    config = Config(task=task, model=SMALL_MODEL)
    estimated = estimate_saved_bytes(
        estimate_costs(config, SIZES, Workload(batch_size=4, length=48, gpu=False, precision="bf16"))
    )
    assert estimated == pytest.approx(measure_step_bytes(config, 4, 48, precision="bf16"), rel=0.05)


@EVERY_TASK
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_keeps_what_is_said_of_it(task: TaskName, precision: Any) -> None:
    config = Config(task=task, model=SMALL_MODEL)
    estimated = estimate_saved_bytes(
        estimate_costs(config, SIZES, Workload(batch_size=8, length=64, precision=precision))
    )
    assert estimated == pytest.approx(measure_step_bytes(config, 8, 64, precision, "cuda"), rel=0.15)


def test_attention_written_out_is_kept_only_while_it_is_small() -> None:
    config = Config(task="generate", model=replace(SMALL_MODEL, positions="relative"))

    def keeps_weights(length: int) -> bool:
        cost = estimate_costs(config, SIZES, Workload(batch_size=64, length=length, gpu=False))
        return any(item.name.endswith(", weights") for item in cost.activations)

    assert keeps_weights(32)
    assert not keeps_weights(512)  # the kernel computes them again


def test_the_kernels_limits_are_known_by_their_numbers() -> None:
    assert accounts.MAX_SAVED_ELEMENTS == (tiling.MAX_CHUNK_ELEMENTS_CPU, tiling.MAX_CHUNK_ELEMENTS_GPU)
    assert accounts.MIN_TILE == (sdpa.MIN_TILE_CPU, sdpa.MIN_TILE_GPU)
    assert accounts.MAX_TILED_COST == tiling.MAX_TILED_COST


@pytest.mark.parametrize(
    ("optimizer", "momentum", "copies"),
    [("adamw", 0.9, 2), ("adam", 0.9, 2), ("muon", 0.9, 1), ("sgd", 0.9, 1), ("sgd", 0.0, 0)],
)
def test_the_optimizers_state_is_what_torch_keeps(optimizer: Any, momentum: float, copies: int) -> None:
    config = Config(model=SMALL_MODEL)
    workload = Workload(batch_size=2, length=8, optimizer=optimizer, momentum=momentum)
    state = {item.name: item.total for item in estimate_costs(config, SIZES, workload).training}[
        f"state of {optimizer}"
    ]
    assert optimizer == "muon" or state == copies * 4 * count_parameters(config, SIZES).total
    model = build_model(config, SIZES, "cpu")
    torch_optimizer = build_optimizer(model, TrainConfig(optimizer=optimizer, momentum=momentum, lr=0.1))
    compute_step_loss(config, model, 2, 8, "cpu").backward()
    torch_optimizer.step()
    state_tensors = [
        value
        for parameter_state in torch_optimizer.state.values()
        for value in parameter_state.values()
        if isinstance(value, Tensor)
    ]
    assert sum(value.numel() * 4 for value in state_tensors if value.ndim) == state


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_the_cache_of_a_token_is_two_vectors_a_layer_and_shared_head(shared: int) -> None:
    model = replace(SMALL_MODEL, n_kv_heads=shared, window=8)
    for task, kinds in (
        ("classify", []),
        ("generate", ["token"]),
        ("translate", ["source token", "target token"]),
    ):
        cost = estimate_costs(Config(task=task, model=model), SIZES, Workload(batch_size=3, length=20))
        assert cost.cache_per_token == tuple((kind, 2 * 2 * (shared or 4) * 16 * 4) for kind in kinds)
        cache = sum(item.total for item in cost.inference if item.name.startswith("keys"))
        assert cache == 3 * 20 * sum(size for _, size in cost.cache_per_token)


# ------------------------------------------------------------------------------------------ operations


def count_torch_flops(config: Config, batch: int, length: int) -> int:
    """Torch's own count, on a device that computes nothing."""
    model = build_model(config, SIZES)
    tokens = torch.zeros(batch, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens) if config.task == "translate" else model(tokens)
    return int(counter.get_total_flops())


FLOP_VARIATIONS: list[dict[str, Any]] = [
    *({}, {"n_kv_heads": 1}, {"activation": "swiglu"}, {"head_hidden": 10}, {"tie_embeddings": False}),
    *({"positions": kind} for kind in ("sinusoidal", "rotary", "alibi", "t5", "relative", "none")),
    *({"attention_score": kind} for kind in ("dot", "cosine")),
]


@EVERY_TASK
@pytest.mark.parametrize("model_settings", FLOP_VARIATIONS, ids=str)
def test_operations_are_what_torch_counts(task: TaskName, model_settings: dict[str, Any]) -> None:
    config = Config(task=task, model=replace(SMALL_MODEL, **model_settings))
    cost = estimate_costs(config, SIZES, Workload(batch_size=2, length=100))
    assert 2 * cost.forward_flops == pytest.approx(count_torch_flops(config, 2, 100), rel=0.01)
    assert cost.step_flops == 3 * 2 * cost.forward_flops
    per_text = sum(item.total for item in cost.flop_items if item.per == "text")
    assert sum(100 * flops for flops in cost.flops_per_token.values()) + per_text == cost.forward_flops


@EVERY_TASK
def test_a_window_costs_no_less_than_it_needs_and_no_more_than_the_whole(task: TaskName) -> None:
    config = Config(task=task, model=replace(SMALL_MODEL, window=8))
    cost = estimate_costs(config, SIZES, Workload(batch_size=1, length=400))
    assert cost.needed_forward_flops < count_torch_flops(config, 1, 400) < cost.forward_flops


@given(st.integers(1, 30), st.integers(1, 40) | st.just(-1), st.booleans())
def test_pairs_are_those_that_the_mask_leaves(length: int, window: int, causal: bool) -> None:
    expected = sum(
        (not causal or key <= query) and (window < 0 or abs(query - key) < window)
        for query in range(length)
        for key in range(length)
    )
    assert count_attended_pairs(length, window, causal=causal) == expected


def test_like_terms_are_added_up() -> None:
    assert simplify("3·L·d + 2·L·d + f") == "5·L·d + f"
    assert simplify("1·L·f + L·d") == "L·f + L·d"
