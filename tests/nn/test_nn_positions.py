"""Positions against the formula of the paper, worked in scalars."""

from __future__ import annotations

import math

import pytest
import torch

from triform.nn.positions import Learned, Sinusoidal, sinusoids


def wave(p: int, k: int, d: int) -> float:
    if k % 2 == 0:
        return math.sin(p * 10000 ** (-k / d))
    return math.cos(p * 10000 ** (-(k - 1) / d))


@pytest.mark.parametrize("d", [2, 6, 64])
def test_sinusoidal_positions_equal_the_formula(d: int) -> None:
    table = sinusoids(50, d)
    wanted = torch.tensor([[wave(p, k, d) for k in range(d)] for p in range(50)])
    torch.testing.assert_close(table, wanted, rtol=0, atol=1e-12)


def test_far_positions_are_exact_in_float32_too() -> None:
    torch.set_default_dtype(torch.float32)
    table = sinusoids(5000, 8)
    assert table.dtype == torch.float32
    for k in range(8):
        assert table[4999, k].item() == pytest.approx(wave(4999, k, 8), abs=1e-7)


def test_sinusoidal_positions_are_looked_up_in_any_order_and_shape() -> None:
    scheme = Sinusoidal(10, 4)
    places = torch.tensor([[7, 0, 3], [9, 9, 1]])
    got = scheme(places)
    assert got.shape == (2, 3, 4)
    for b in range(2):
        for t in range(3):
            assert got[b, t].tolist() == pytest.approx([wave(int(places[b, t]), k, 4) for k in range(4)])


def test_sinusoidal_positions_have_nothing_to_learn_and_nothing_to_save() -> None:
    scheme = Sinusoidal(10, 4)
    assert not list(scheme.parameters())
    assert not scheme.state_dict()


def test_learned_positions_are_one_trained_vector_each() -> None:
    scheme = Learned(10, 4)
    scheme(torch.tensor([2, 2, 5])).sum().backward()
    grad = scheme.table.weight.grad
    assert grad[2].tolist() == [2.0] * 4
    assert grad[5].tolist() == [1.0] * 4
    assert grad.sum() == 12
