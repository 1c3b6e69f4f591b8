"""Schedules against numbers worked by hand and against torch; optimizers against torch's plain ones."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from triform.config import DataSizes, ModelConfig, ScheduleKind, TrainConfig
from triform.models.decoder import Decoder
from triform.training.optim import (
    SCHEDULES,
    PlateauSchedule,
    build_optimizer,
    build_parameter_groups,
    build_schedule,
)


def lr_factors(kind: ScheduleKind, steps: list[int], *, max_steps: int = 100, **settings: float) -> list[float]:
    schedule = build_schedule(TrainConfig(schedule=kind, **settings), max_steps)
    return [schedule.lr_factor(step) for step in steps]


# -- schedules


def test_cosine_falls_from_one_to_its_end_as_worked_by_hand() -> None:
    """Warm-up of 20, then 80 steps: a quarter of them leaves (1 + cos 45°) / 2 of the way, half of them 1/2."""
    actual = lr_factors("cosine", [10, 20, 40, 60, 80, 100], warmup_steps=20, min_lr_ratio=0.1)
    quarter = (1 + math.sqrt(2) / 2) / 2
    expected = [0.5, 1.0, 0.1 + 0.9 * quarter, 0.55, 0.1 + 0.9 * (1 - quarter), 0.1]
    assert actual == pytest.approx(expected, rel=1e-12)


def test_linear_falls_evenly() -> None:
    actual = lr_factors("linear", [5, 10, 40, 55, 100], warmup_steps=10, min_lr_ratio=0.25)
    assert actual == pytest.approx([0.5, 1.0, 0.75, 0.625, 0.25], rel=1e-12)


def test_noam_falls_with_the_root_of_the_step() -> None:
    actual = lr_factors("noam", [1, 2, 4, 16, 64, 100], warmup_steps=4)
    assert actual == pytest.approx([0.25, 0.5, 1.0, 0.5, 0.25, 0.2], rel=1e-12)


@given(st.integers(1, 5000), st.integers(1, 20_000), st.integers(8, 1024))
def test_noam_is_the_papers_formula_scaled_to_its_peak(warmup: int, step: int, d_model: int) -> None:
    def paper_lr(step: int) -> float:
        return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)

    (actual,) = lr_factors("noam", [step], warmup_steps=warmup)
    assert actual == pytest.approx(paper_lr(step) / paper_lr(warmup), rel=1e-9)


def test_constant_stays_after_a_linear_warm_up() -> None:
    assert lr_factors("constant", [1, 2, 3, 4, 5, 99], warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_without_a_warm_up_the_first_step_is_near_the_full_rate(kind: ScheduleKind) -> None:
    for warmup in (0, -1):
        assert lr_factors(kind, [1], max_steps=1000, warmup_steps=warmup) == pytest.approx([1.0], abs=1e-3)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_rises_to_one_and_no_share_leaves_its_bounds(kind: ScheduleKind) -> None:
    actual = lr_factors(kind, list(range(1, 131)), warmup_steps=30, max_steps=100, min_lr_ratio=0.05)
    assert actual[:30] == pytest.approx([step / 30 for step in range(1, 31)], rel=1e-12)
    assert all(before >= after for before, after in pairwise(actual[29:]))
    assert min(actual[29:]) >= 0.05


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_last_step_is_at_the_final_share_and_later_ones_stay_there(kind: ScheduleKind) -> None:
    assert lr_factors(kind, [100, 101, 500], min_lr_ratio=0.2, warmup_steps=10) == pytest.approx([0.2] * 3)


def test_a_warm_up_longer_than_the_run_is_no_mistake() -> None:
    for kind in SCHEDULES:
        assert lr_factors(kind, [1, 10], max_steps=10, warmup_steps=20) == pytest.approx([0.05, 0.5])


loss_lists = st.lists(
    st.one_of(st.floats(0.01, 5.0), st.sampled_from([1.0, 0.99995, 0.9998, math.nan])), max_size=40
)


@given(loss_lists, st.integers(0, 4), st.sampled_from([0.1, 0.5, 0.9]))
def test_plateau_is_torchs_reduce_on_plateau(observed_losses: list[float], patience: int, factor: float) -> None:
    schedule = build_schedule(
        TrainConfig(schedule="plateau", plateau_patience=patience, plateau_factor=factor, warmup_steps=0), 100
    )
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    torch_schedule = ReduceLROnPlateau(optimizer, factor=factor, patience=patience, eps=0.0)
    for step, loss in enumerate(observed_losses, 1):
        schedule.on_validation_loss(loss)
        torch_schedule.step(loss)
        assert schedule.lr_factor(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@given(loss_lists, loss_lists)
def test_a_plateau_goes_on_from_its_state(before: list[float], after: list[float]) -> None:
    config = TrainConfig(schedule="plateau", plateau_patience=1, warmup_steps=0)
    uninterrupted, resumed = PlateauSchedule(config, 100), PlateauSchedule(config, 100)
    for loss in before:
        uninterrupted.on_validation_loss(loss)
    resumed.load_state_dict(dict(uninterrupted.state_dict()))
    for loss in after:
        uninterrupted.on_validation_loss(loss)
        resumed.on_validation_loss(loss)
        assert resumed.lr_factor(50) == uninterrupted.lr_factor(50)


def test_only_a_plateau_listens_to_losses() -> None:
    for kind in SCHEDULES:
        schedule = build_schedule(TrainConfig(schedule=kind, plateau_patience=0, warmup_steps=0), 100)
        before = schedule.lr_factor(50)
        for loss in (1.0, 2.0, 3.0):
            schedule.on_validation_loss(loss)
        assert (schedule.lr_factor(50) < before) == (kind == "plateau")


# -- optimizers


def tiny_model() -> Decoder:
    torch.manual_seed(0)
    # No key bias: its gradient is nothing but rounding, which Adam would make visible.
    shape = ModelConfig(d_model=8, d_ff=16, n_layers=1, n_heads=2, dropout=0.0, qkv_bias=False)
    return Decoder(shape, DataSizes(vocab_size=9, max_len=8)).double()


def train_steps(model: Decoder, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    tokens = torch.randint(9, (4, 8), generator=torch.Generator().manual_seed(1))
    for _ in range(6):
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def split_groups(model: nn.Module, decay: float) -> list[dict[str, object]]:
    """Matrices and vectors, written out again."""
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]


TORCH_OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.02, betas=(0.8, 0.95), foreach=False),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.95), foreach=False),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.7, foreach=False),
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_optimizers_are_torchs_plain_ones(name: str) -> None:
    model, reference = tiny_model(), tiny_model()
    config = TrainConfig(optimizer=name, lr=0.02, betas=(0.8, 0.95), momentum=0.7, weight_decay=0.3)
    actual = train_steps(model, build_optimizer(model, config))
    expected = train_steps(reference, TORCH_OPTIMIZERS[name](split_groups(reference, 0.3)))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_weight_decay_touches_matrices_alone() -> None:
    """With no gradient but decay, AdamW shrinks a weight by lr times decay and leaves everything else."""
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
            parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    build_optimizer(model, TrainConfig(optimizer="adamw", lr=0.1, weight_decay=0.5)).step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-12, atol=0)


def test_every_trained_parameter_is_in_one_group_and_frozen_ones_in_none() -> None:
    model = tiny_model()
    model.final_norm.requires_grad_(False)
    groups = build_parameter_groups(model, 0.1)
    grouped = [parameter for group in groups for parameter in group["params"]]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(grouped) == len(trainable)
    assert {id(parameter) for parameter in grouped} == {id(parameter) for parameter in trainable}
    only_vectors = nn.LayerNorm(4)
    assert len(build_parameter_groups(only_vectors, 0.1)) == 1
