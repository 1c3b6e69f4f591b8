"""Each part of the NumPy Transformer against something we did not write: math, torch, a number worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from triform.config import TrainConfig
from triform.scratch.activations import ACTIVATIONS
from triform.scratch.attention import softmax
from triform.scratch.layers import Embedding, LayerNorm, Linear, dropout, sinusoidal_table
from triform.scratch.loss import cross_entropy
from triform.scratch.module import FlatParameters, Module, Parameter
from triform.scratch.optim import OPTIMIZERS, clip_gradient, learning_rate
from triform.training.optim import build_optimizer, build_schedule


def test_gelu_is_x_times_the_share_of_a_normal_distribution_below_x() -> None:
    x = np.linspace(-12, 12, 20_001)
    cdf = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])
    for dtype, tolerance in ((np.float64, 1e-14), (np.float32, 1e-6)):
        y, backward = ACTIVATIONS["gelu"]()(x.astype(dtype))
        slope = cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        assert np.abs(y - x * cdf).max() < tolerance
        assert np.abs(backward(np.ones_like(y)) - slope).max() < tolerance
        assert y.dtype == dtype


def test_what_is_too_wide_is_refused_though_its_numbers_could_be_cut_to_fit() -> None:
    layer = Linear(3, 2)
    FlatParameters(layer, np.float64)
    with pytest.raises(ValueError, match="size 3 is different from 4"):
        layer(np.ones((3, 4)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_those_of_torch(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((7, 1 << 12)) * 3
    theirs = torch.from_numpy(x).requires_grad_()
    references: dict[str, Any] = {"relu": torch.relu, "gelu": torch.nn.GELU(), "gelu_tanh": torch.nn.GELU("tanh")}
    expected = references[name](theirs)
    expected.backward(torch.cos(theirs.detach()))
    y, backward = ACTIVATIONS[name]()(x)
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(backward(np.cos(x)), theirs.grad.numpy(), atol=1e-13)


def test_softmax_stands_rows_that_lie_far_apart() -> None:
    scores = np.array([[0.0, 1.0], [1000.0, 1001.0], [-1e30, 5.0]], np.float32)
    weight = 1 / (1 + math.e)
    np.testing.assert_allclose(softmax(scores), [[weight, 1 - weight], [weight, 1 - weight], [0, 1]], rtol=1e-6)
    assert (scores[0] == [0, 1]).all(), "the scores are left as they are"


def test_layer_norm_does_not_see_a_shift_or_a_scale() -> None:
    norm = LayerNorm(6)
    FlatParameters(norm, np.float64)
    norm.weight.value[...] = np.arange(1, 7)
    x = np.random.default_rng(0).standard_normal((4, 6))
    y, backward = norm(x)
    np.testing.assert_allclose(norm(1000 * x + 7)[0], y, atol=1e-3)
    dx = backward(np.random.default_rng(1).standard_normal((4, 6)))
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-12)
    assert np.abs((dx * x).sum(axis=-1)).max() < 1e-3


def test_a_row_of_a_table_learns_from_every_place_where_it_was_used() -> None:
    table = Embedding(4, 2)
    FlatParameters(table, np.float64)
    _, backward = table(np.array([[3, 1, 3], [1, 3, 0]]))
    backward(np.array([[[1, 2], [10, 20], [3, 4]], [[30, 40], [5, 6], [7, 8]]], np.float64))
    np.testing.assert_array_equal(table.weight.grad, [[7, 8], [40, 60], [0, 0], [9, 12]])


def test_dropout_drops_its_share_keeps_the_mean_and_goes_back_the_way_it_came() -> None:
    x = np.ones((400, 500), np.float32)
    y, backward = dropout(x, 0.3, np.random.default_rng(0))
    assert abs((y == 0).mean() - 0.3) < 0.01
    assert abs(y.mean() - 1) < 0.01
    np.testing.assert_array_equal(backward(x), y)
    np.testing.assert_array_equal(dropout(x, 0.3, None)[0], x)


def test_fixed_positions_are_worked_by_hand() -> None:
    table = sinusoidal_table(3, 4)
    np.testing.assert_allclose(table[0], [0, 1, 0, 1])
    np.testing.assert_allclose(table[2], [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_and_its_gradient_are_those_of_torch(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((9, 5)) * 4, rng.integers(0, 5, 9)
    theirs = torch.from_numpy(logits).requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        theirs, torch.from_numpy(targets), label_smoothing=smoothing, reduction="sum"
    )
    expected.backward()
    loss, gradient = cross_entropy(logits, targets, smoothing)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), atol=1e-14)


class TwoParameters(Module):
    def __init__(self) -> None:
        self.bias, self.weight = Parameter(3), Parameter(150, 150)


class TorchTwoParameters(torch.nn.Module):
    def __init__(self, weights: FlatParameters) -> None:
        super().__init__()
        for name, parameter in weights.named.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(parameter.value.copy())))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weights_move_as_torch_moves_them(kind: Any) -> None:
    config = TrainConfig(optimizer=kind, lr=0.1, weight_decay=0.2, betas=(0.8, 0.95))
    rng = np.random.default_rng(0)
    ours = FlatParameters(TwoParameters(), np.float64)
    ours.value[...] = rng.standard_normal(len(ours.value))
    theirs = TorchTwoParameters(ours)
    optimizer, reference = OPTIMIZERS[kind](ours, config), build_optimizer(theirs, config)
    for step in range(1, 6):
        ours.grad[...] = rng.standard_normal(len(ours.grad))
        for name, parameter in ours.named.items():
            getattr(theirs, name).grad = torch.from_numpy(parameter.grad.copy())
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert clip_gradient(ours.grad, 1.0) == pytest.approx(norm.item(), rel=1e-12)
        for group in reference.param_groups:
            group["lr"] = 0.1 / step
        reference.step()
        optimizer.step(0.1 / step)
        for name, parameter in ours.named.items():
            np.testing.assert_allclose(
                parameter.value, getattr(theirs, name).detach().numpy(), rtol=1e-9, atol=1e-12
            )


def test_a_short_gradient_is_not_clipped_and_none_is_without_a_limit() -> None:
    grad = np.array([3.0, 4.0])
    assert clip_gradient(grad, 6.0) == 5
    assert clip_gradient(grad, 0.0) == 5
    assert grad.tolist() == [3, 4]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "noam"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_rates_are_those_of_the_trainer(schedule: Any, warmup: int) -> None:
    config = TrainConfig(lr=0.5, schedule=schedule, warmup_steps=warmup)
    reference = build_schedule(config, 40)
    for step in range(1, 41):
        assert learning_rate(config, step, 40) == pytest.approx(0.5 * reference.lr_factor(step))
