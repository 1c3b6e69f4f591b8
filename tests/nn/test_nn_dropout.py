"""Dropout of attention weights: in training only, with the same mean, and the same when computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from matching_cases import DOT_PAIRS, PAIRS, attended, inputs, matching, turned, with_gradients
from torch import Tensor

from triform.config import ModelConfig
from triform.nn import kernels
from triform.nn.attention import Attention
from triform.nn.cache import NoCache
from triform.nn.choice import automatic
from triform.nn.kernels import Kernel, Matching, explicit, frugal, fused, spread, weights
from triform.nn.masks import Rule, causal, everything, window
from triform.nn.positions import relation

TINY = ModelConfig(d_model=8, d_ff=16, n_layers=1, n_heads=2, attention_dropout=0.5)


@pytest.mark.parametrize(("score", "position"), PAIRS)
@pytest.mark.parametrize("kernel", [explicit, frugal, automatic, fused])
def test_every_kernel_drops_weights_and_keeps_their_mean(kernel: Kernel, score: str, position: str) -> None:
    if kernel is fused and (score, position) not in DOT_PAIRS:
        return
    made = matching(score, position, causal=False)
    for parameter in made.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    q, k, v = (x.detach() * 0.3 for x in inputs(40, 8, 60, 2))
    got = attended(kernel, (q, k, torch.ones_like(v)), everything, made, dropout=0.3)
    whole = attended(kernel, (q, k, torch.ones_like(v)), everything, made)  # the sum of all weights, and a relation
    assert (got - whole).std() > 0.01
    assert (got - whole).mean().item() == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    "settings",
    [{}, {"window": 2}, {"score": "additive"}, {"positions": "relative"}, {"positions": "t5"}, {"n_kv_heads": 1}],
)
def test_attention_drops_in_training_only(settings: dict[str, object]) -> None:
    config = replace(TINY, **settings)
    attention = Attention(config, relation(config, 9, causal=True))
    x, rule, places = torch.randn(2, 9, 8), causal & window(config.window), torch.arange(9)
    assert not torch.equal(*(attention(x, x, rule, places, NoCache()) for _ in range(2)))
    attention.eval()
    assert torch.equal(*(attention(x, x, rule, places, NoCache()) for _ in range(2)))
    plain = Attention(replace(config, attention_dropout=0.0), relation(config, 9, causal=True))
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, rule, places, NoCache()), plain(x, x, rule, places, NoCache()))


def piece_by_piece(qkv: tuple[Tensor, ...], rule: Rule, made: Matching, queries: int, dropout: float) -> Tensor:
    """The formula with the same dropout, drawn for the same queries in turn, and nothing computed again."""
    q, k = turned(made, *qkv[:2])
    v = spread(qkv[2], q)
    shares = weights(q, k, rule, made)
    t, parts = q.shape[-2], []
    for first in range(0, t, queries):
        last = min(first + queries, t)
        some = F.dropout(shares[:, :, first:last, :last], dropout)  # causal: no keys beyond the last query
        distances = torch.arange(-(last - 1), last - first)
        parts.append(some @ v[:, :, :last] + made.relation.values(some, distances))
    return torch.cat(parts, dim=-2)


@pytest.mark.parametrize(("score", "position"), PAIRS)
def test_what_is_computed_again_drops_the_same(score: str, position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, t, queries = 2, 12, 5
    made = matching(score, position, causal=True)
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", queries * rows * 4 * t * made.score.cost(4))
    qkv = inputs(rows, t, t, 2)
    leaves = [*qkv, *made.parameters()]
    torch.manual_seed(3)
    wanted = list(with_gradients(piece_by_piece(qkv, causal, made, queries, 0.4), leaves))
    torch.manual_seed(3)
    got = list(with_gradients(attended(frugal, qkv, causal, made, 0.4), leaves))
    assert not torch.allclose(got[0], attended(frugal, qkv, causal, made))
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
