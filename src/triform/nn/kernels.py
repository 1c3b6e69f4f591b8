"""Ways to compute the same attention: the formula, written out, and the fast ones that equal it.

`explicit` is for reading and recording. `fused` is torch's fused attention over the pieces that the rule leaves:
all at once, a window at a time, or a packed row at a time. `frugal` is the formula a few queries at a time, for
what no fused kernel computes. `flex.py` compiles windows for CUDA, and `choice.py` picks among them all.
A query that may read nothing gets zeros from each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triform.nn.masks import Piece, Rule, whole
from triform.nn.pieces import Hidden, cut, hidden, on_gpu, spans
from triform.nn.positions import Relation
from triform.nn.scores import Score

MOST_AT_ONCE, MOST_AT_ONCE_ON_GPU = 1 << 22, 1 << 26  # numbers that `frugal` lets one piece hold
OFTEN = 4  # pieces that may share a key before each is sliced by itself


class Matching(nn.Module):
    """How queries match keys: how alike they are, and what their distance adds."""

    def __init__(self, score: Score, relation: Relation) -> None:
        super().__init__()
        self.score, self.relation = score, relation
        self.is_plain = score.is_dot and not relation.by_distance and not relation.needs_weights

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:  # -> (B, H, T, S)
        asked = self.score.queries(q) * self.score.scale
        return self.score(q, spread(k, q)) + self.relation.bias(asked, distances)


class Kernel(Protocol):
    """q (B, H, T, Dh), k and v (B, G, S, Dh) -> (B, H, T, Dh)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float
    ) -> Tensor: ...


def spread(x: Tensor, q: Tensor) -> Tensor:  # (B, G, S, Dh) -> (B, H, S, Dh)
    """Shared heads of keys or values, repeated for the query heads that they serve."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def weights(q: Tensor, k: Tensor, rule: Rule, matching: Matching, piece: Piece | None = None) -> Tensor:
    """How much each query attends to each key: (B, H, T, S), rows summing to one."""
    piece = piece or whole(q.shape[-2], k.shape[-2])
    scores = matching(q, k, rule.distances(piece, q.device))  # (B, H, T, S)
    keep = rule.dense(piece, q.device)
    shares = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    return shares.masked_fill(~keep, 0.0)  # a row with nothing to read is NaN until here


def explicit(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float, piece: Piece | None = None
) -> Tensor:
    """softmax(score(q, k) + bias) v, step by step."""
    piece = piece or whole(q.shape[-2], k.shape[-2])
    shares = weights(q, k, rule, matching, piece)
    shares = F.dropout(shares, dropout, training=dropout > 0).to(v.dtype)
    joined = matching.relation.values(shares, rule.distances(piece, q.device))
    return shares @ spread(v, q) + joined  # (B, H, T, Dh)


def fused(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float,
    attention: Callable[..., Tensor] = F.scaled_dot_product_attention,
) -> Tensor:  # fmt: skip
    """The same through torch's fused attention, which never writes the (T, S) weights to memory."""
    score = matching.score

    def attend(q: Tensor, k: Tensor, v: Tensor, piece: Piece) -> Tensor:
        how = hidden(rule, piece)
        by_distance = matching.relation.by_distance
        flag = how is Hidden.FUTURE and not by_distance
        keep = None if flag or how is Hidden.NOTHING else rule.dense(piece, q.device)
        mask, blind = keep, None
        if q.is_cuda and keep is not None and not rule.exact and not by_distance:
            mask, blind = rule.added(piece, q.device, q.dtype)  # made once, not by each layer's kernel
        if by_distance:
            bias = matching.relation.bias(q, rule.distances(piece, q.device))  # (1, H, T, S)
            mask = bias if keep is None else bias.masked_fill(~keep, float("-inf"))
        y = attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=flag, scale=score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if keep is None or rule.exact or not rule.may_hide_all or not q.is_cuda:
            return y
        # cuDNN's kernel gives a query that may read nothing the mean of all values
        return y.masked_fill(~keep.any(dim=-1, keepdim=True) if blind is None else blind, 0.0)

    pieces = cut(rule, q.shape[-2], k.shape[-2], gpu=on_gpu(q))
    return _by_piece(attend, score.queries(q), score.keys(k), v, pieces)


def alone(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """One query that reads every key, by dot product alone: a decoding step with as few calls as there can be."""
    score = matching.score
    return F.scaled_dot_product_attention(
        score.queries(q), score.keys(k), v, scale=score.scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def frugal(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """The formula a few queries at a time, computed again when gradients are: memory grows with T, not T²."""

    def attend(q: Tensor, k: Tensor, v: Tensor, piece: Piece) -> Tensor:
        return explicit(q, k, v, rule, matching, dropout, piece)

    def again(q: Tensor, k: Tensor, v: Tensor, piece: Piece) -> Tensor:
        rule.dense(piece, q.device)  # remembered from here on: what is computed again must leave no trace
        return checkpoint(attend, q, k, v, piece, use_reentrant=False)

    t, s = q.shape[-2], k.shape[-2]
    a_pair = max(1, q.shape[0] * q.shape[1] * matching.score.cost(q.shape[-1]))
    gpu = on_gpu(q)
    pairs = (MOST_AT_ONCE_ON_GPU if gpu else MOST_AT_ONCE) // a_pair
    pieces = cut(rule, t, s, gpu=gpu, most=_queries(pairs, s, rule.span.width))
    return _by_piece(again if len(pieces) > 1 and torch.is_grad_enabled() else attend, q, k, v, pieces)


def _queries(pairs: int, s: int, width: int) -> int:
    """How many queries have at most so many pairs with their keys: n of them see n - 1 + width keys, or all s."""
    within = (math.isqrt((width - 1) ** 2 + 4 * pairs) - (width - 1)) // 2
    return max(1, pairs // max(1, s), within)


Attend = Callable[[Tensor, Tensor, Tensor, Piece], Tensor]


def _attend_alone(attend: Attend, q: Tensor, k: Tensor, v: Tensor, piece: Piece) -> Tensor:
    k, v = (x.narrow(-2, piece.k, piece.s) for x in (k, v))
    return attend(q.narrow(-2, piece.q, piece.t), k, v, piece)


def _by_piece(attend: Attend, q: Tensor, k: Tensor, v: Tensor, pieces: list[Piece]) -> Tensor:
    """Attend within each piece, and put the answers together."""
    if pieces == [whole(q.shape[-2], k.shape[-2])]:
        return attend(q, k, v, pieces[0])
    # Where each key is in many pieces, their gradients must not wait for one another: they would be T³ numbers.
    if sum(piece.s for piece in pieces) > OFTEN * k.shape[-2]:
        return torch.cat([_attend_alone(attend, q, k, v, piece) for piece in pieces], dim=-2)
    key_places = [(piece.k, piece.s) for piece in pieces]
    queries = spans(q, [(piece.q, piece.t) for piece in pieces])
    parts = zip(queries, spans(k, key_places), spans(v, key_places), pieces, strict=True)
    return torch.cat([attend(*part) for part in parts], dim=-2)
