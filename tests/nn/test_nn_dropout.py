"""Dropout of attention weights: in training only, with the same mean, and the same when computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from score_cases import DOT_PAIRS, PAIRS, build_score_fn, output_and_gradients, random_qkv, rotate_qk, run_kernel
from torch import Tensor

from triform.config import ModelConfig
from triform.nn.attention import (
    Attention,
    AttentionKernel,
    ScoreFunction,
    attention_weights,
    naive_attention,
    repeat_kv,
)
from triform.nn.kernels import tiling
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.tiling import chunked_attention, tiled_sdpa_attention
from triform.nn.masks import AttentionMask, causal_mask, full_mask, window_mask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES

TINY = ModelConfig(d_model=8, d_ff=16, n_layers=1, n_heads=2, attention_dropout=0.5)


@pytest.mark.parametrize(("score", "position"), PAIRS)
@pytest.mark.parametrize("kernel", [naive_attention, chunked_attention, dispatch_attention, tiled_sdpa_attention])
def test_every_kernel_drops_weights_and_keeps_their_mean(
    kernel: AttentionKernel, score: str, position: str
) -> None:
    if kernel is tiled_sdpa_attention and (score, position) not in DOT_PAIRS:
        return
    score_fn = build_score_fn(score, position, causal=False)
    for parameter in score_fn.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    q, k, v = (x.detach() * 0.3 for x in random_qkv(40, 8, 60, 2))
    actual = run_kernel(kernel, (q, k, torch.ones_like(v)), full_mask, score_fn, dropout=0.3)
    # The sum of all weights, and a relation.
    full = run_kernel(kernel, (q, k, torch.ones_like(v)), full_mask, score_fn)
    assert (actual - full).std() > 0.01
    assert (actual - full).mean().item() == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window": 2},
        {"attention_score": "additive"},
        {"positions": "relative"},
        {"positions": "t5"},
        {"n_kv_heads": 1},
    ],
)
def test_attention_drops_in_training_only(settings: dict[str, object]) -> None:
    config = replace(TINY, **settings)
    attention = Attention(config, build_relative_position(config, 9, causal=True), SCORES[config.attention_score])
    x, mask, positions = torch.randn(2, 9, 8), causal_mask & window_mask(config.window), torch.arange(9)
    assert not torch.equal(*(attention(x, x, mask, positions) for _ in range(2)))
    attention.eval()
    assert torch.equal(*(attention(x, x, mask, positions) for _ in range(2)))
    position = build_relative_position(config, 9, causal=True)
    plain = Attention(replace(config, attention_dropout=0.0), position, SCORES[config.attention_score])
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, mask, positions), plain(x, x, mask, positions))


def tiled_reference(
    qkv: tuple[Tensor, ...], mask: AttentionMask, score_fn: ScoreFunction, queries: int, dropout: float
) -> Tensor:
    """The formula with the same dropout, drawn for the same queries in turn, and nothing computed again."""
    q, k = rotate_qk(score_fn, *qkv[:2])
    v = repeat_kv(qkv[2], q)
    weights = attention_weights(q, k, mask, score_fn)
    t, parts = q.shape[-2], []
    for first in range(0, t, queries):
        last = min(first + queries, t)
        dropped = F.dropout(weights[:, :, first:last, :last], dropout)  # causal: no keys beyond the last query
        distances = torch.arange(last) - torch.arange(first, last)[:, None]
        parts.append(dropped @ v[:, :, :last] + score_fn.relative_position.value_bias(dropped, distances))
    return torch.cat(parts, dim=-2)


@pytest.mark.parametrize(("score", "position"), PAIRS)
def test_what_is_computed_again_drops_the_same(score: str, position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, t, queries = 2, 12, 5
    score_fn = build_score_fn(score, position, causal=True)
    elements_per_pair = 1 if score_fn.score.is_dot_product else 4
    monkeypatch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", queries * rows * 4 * t * elements_per_pair)
    qkv = random_qkv(rows, t, t, 2)
    leaves = [*qkv, *score_fn.parameters()]
    torch.manual_seed(3)
    expected = list(output_and_gradients(tiled_reference(qkv, causal_mask, score_fn, queries, 0.4), leaves))
    torch.manual_seed(3)
    actual = list(output_and_gradients(run_kernel(chunked_attention, qkv, causal_mask, score_fn, 0.4), leaves))
    assert not torch.allclose(actual[0], run_kernel(chunked_attention, qkv, causal_mask, score_fn))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
