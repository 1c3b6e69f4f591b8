"""Positions against the formula of the paper, worked in scalars."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from triform.config import ModelConfig, PositionKind
from triform.nn.attention import RelativePosition
from triform.nn.embedding import (
    POSITION_EMBEDDINGS,
    LearnedPositionEmbedding,
    SinusoidalPositionEmbedding,
    build_sinusoidal_table,
)
from triform.nn.kernels.sdpa import expand_toeplitz
from triform.nn.masks import full_mask
from triform.nn.positions import RELATIVE_POSITIONS, AlibiBias, RotaryPosition, build_relative_position


def sinusoid(p: int, k: int, d: int) -> float:
    if k % 2 == 0:
        return math.sin(p * 10000 ** (-k / d))
    return math.cos(p * 10000 ** (-(k - 1) / d))


@pytest.mark.parametrize("d", [2, 6, 64])
def test_sinusoidal_positions_equal_the_formula(d: int) -> None:
    table = build_sinusoidal_table(50, d)
    expected = torch.tensor([[sinusoid(p, k, d) for k in range(d)] for p in range(50)])
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [1, 5, 30])
def test_a_fixed_shift_of_sinusoidal_positions_is_a_linear_map(shift: int) -> None:
    """One matrix, the same for all positions, turns the vector of p into that of p + shift."""
    d, table = 16, build_sinusoidal_table(80, 16)
    rotation = torch.zeros(d, d)
    for k in range(0, d, 2):
        angle = shift * 10000 ** (-k / d)
        rotation[k : k + 2, k : k + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
    torch.testing.assert_close(table[:-shift] @ rotation.T, table[shift:], rtol=0, atol=1e-12)


def test_far_positions_are_exact_in_float32_too() -> None:
    torch.set_default_dtype(torch.float32)
    table = build_sinusoidal_table(5000, 8)
    assert table.dtype == torch.float32
    for k in range(8):
        assert table[4999, k].item() == pytest.approx(sinusoid(4999, k, 8), abs=1e-7)


def test_sinusoidal_positions_are_looked_up_in_any_order_and_shape() -> None:
    embedding = SinusoidalPositionEmbedding(10, 4)
    positions = torch.tensor([[7, 0, 3], [9, 9, 1]])
    actual = embedding(torch.ones(2, 3, 4), positions) - 1
    assert actual.shape == (2, 3, 4)
    for b in range(2):
        for t in range(3):
            assert actual[b, t].tolist() == pytest.approx([sinusoid(int(positions[b, t]), k, 4) for k in range(4)])


def test_sinusoidal_positions_have_nothing_to_learn_and_nothing_to_save() -> None:
    embedding = SinusoidalPositionEmbedding(10, 4)
    assert not list(embedding.parameters())
    assert not embedding.state_dict()


def test_learned_positions_are_one_trained_vector_each() -> None:
    embedding = LearnedPositionEmbedding(10, 4)
    embedding(torch.zeros(1, 3, 4), torch.tensor([2, 2, 5])).sum().backward()
    grad = embedding.table.weight.grad
    assert grad[2].tolist() == [2.0] * 4
    assert grad[5].tolist() == [1.0] * 4
    assert grad.sum() == 12


# ------------------------------------------------------------------------------------------ relations

CONFIG = ModelConfig(d_model=16, n_heads=4)


def test_a_number_a_distance_lies_along_the_diagonals() -> None:
    numbers = torch.arange(-3, 3)  # three queries, four keys: the last query's first key is three back
    assert expand_toeplitz(numbers, 3).tolist() == [[-1, 0, 1, 2], [-2, -1, 0, 1], [-3, -2, -1, 0]]


@pytest.mark.parametrize("positions", [torch.arange(5), torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]])])
def test_rotary_scores_depend_on_distance_alone_and_lengths_do_not_change(positions: torch.Tensor) -> None:
    rotary = RotaryPosition(replace(CONFIG, positions="rotary"), 64, causal=True)
    q, k = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4)
    rotated_q, shifted_q = (rotary.rotate(q, positions + offset) for offset in (0, 40))
    rotated_k, shifted_k = (rotary.rotate(k, positions + offset).repeat_interleave(2, dim=1) for offset in (0, 40))
    torch.testing.assert_close(rotated_q @ rotated_k.mT, shifted_q @ shifted_k.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(rotated_q.norm(dim=-1), q.norm(dim=-1), rtol=0, atol=1e-12)


def test_rotary_positions_have_nothing_to_learn_and_nothing_to_save() -> None:
    for kind in (RotaryPosition, AlibiBias):
        relative_position = kind(CONFIG, 10, causal=True)
        assert not list(relative_position.parameters())
        assert not relative_position.state_dict()


def test_rotary_angles_are_exact_far_out_in_float32_too() -> None:
    torch.set_default_dtype(torch.float32)
    rotary = RotaryPosition(replace(CONFIG, rotary_base=500_000.0), 100_001, causal=True)
    assert rotary.cos.dtype == torch.float32
    for d in range(4):
        angle = 100_000 * 500_000.0 ** (-2 * (d % 2) / 4)
        assert rotary.cos[100_000, d].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_relations_by_distance_add_alike_to_all_rows_and_are_as_told_one_by_one(name: str) -> None:
    relative_position = build_relative_position(replace(CONFIG, positions=name), 10, causal=False)
    distances = full_mask.distances(4, 7, torch.device("cpu"))
    bias = relative_position.score_bias(torch.randn(3, 4, 4, 4), distances)
    assert bias.shape == (1, 4, 4, 7)
    distance_bias = relative_position.distance_bias(torch.arange(-6, 4))
    for i in range(4):
        for j in range(7):
            assert torch.equal(bias[0, :, i, j], distance_bias[:, j - (3 + i) + 6])


def test_a_plain_relation_adds_nothing() -> None:
    relative_position, x = RelativePosition(), torch.randn(2, 4, 3, 4)
    assert relative_position.rotate(x, torch.arange(3)) is x
    assert relative_position.score_bias(x, torch.arange(5)).item() == 0
    assert relative_position.value_bias(x, torch.arange(5)).item() == 0
    with pytest.raises(NotImplementedError):
        relative_position.distance_bias(torch.arange(3))


def test_beyond_the_farthest_distance_relative_positions_are_one() -> None:
    relative_position = build_relative_position(
        replace(CONFIG, positions="relative", max_distance=2), 10, causal=False
    )
    assert relative_position.key_table.weight.shape == relative_position.value_table.weight.shape == (5, 4)
    # One query, ten keys.
    bias = relative_position.score_bias(torch.randn(1, 4, 1, 4), torch.arange(-9, 1)[None])[0, :, 0]
    assert (bias[:, :8] == bias[:, :1]).all()
    assert not torch.isclose(bias[:, 7:], bias[:, 7:].roll(1, -1)).any()


@pytest.mark.parametrize(("name", "far"), [("relative", 16), ("t5", 128)])
def test_the_farthest_distance_is_the_published_one_unless_said(name: str, far: int) -> None:
    config = replace(CONFIG, positions=name)
    assert config.resolved_max_distance == far
    assert replace(config, max_distance=40).resolved_max_distance == 40


@pytest.mark.parametrize("name", get_args(PositionKind))
def test_a_scheme_is_for_the_embedding_or_for_attention(name: str) -> None:
    assert name not in POSITION_EMBEDDINGS or name not in RELATIVE_POSITIONS
    built = build_relative_position(replace(CONFIG, positions=name), 10, causal=True)
    assert type(built) is RELATIVE_POSITIONS.get(name, RelativePosition)
