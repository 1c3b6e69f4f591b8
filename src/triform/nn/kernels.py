"""Two ways to compute the same attention: the formula, written out, and the fused kernel.

A query that may read nothing gets zeros from both.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from triform.nn.masks import Reading, Rule
from triform.nn.scores import Score


class Kernel(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule, score: Score, dropout: float) -> Tensor: ...


def weights(q: Tensor, k: Tensor, rule: Rule, score: Score) -> Tensor:
    """How much each query attends to each key: (B, H, T, S), rows summing to one."""
    scores = score(q, k)  # (B, H, T, S)
    keep = rule.dense(q.shape[-2], k.shape[-2], q.device)
    hidden = scores.masked_fill(~keep, float("-inf"))
    return hidden.softmax(dim=-1).masked_fill(~keep, 0.0)  # a row with nothing to read is NaN until here


def explicit(q: Tensor, k: Tensor, v: Tensor, rule: Rule, score: Score, dropout: float) -> Tensor:
    """softmax(q kᵀ / sqrt(Dh)) v, step by step."""
    return F.dropout(weights(q, k, rule, score), dropout, training=dropout > 0) @ v  # (B, H, T, Dh)


def fused(q: Tensor, k: Tensor, v: Tensor, rule: Rule, score: Score, dropout: float) -> Tensor:
    """The same through torch's fused attention, which never writes the (T, S) weights to memory."""
    q, k, scale = score.as_dot(q, k)
    t, s = q.shape[-2], k.shape[-2]
    reading = rule.reading(t, s)
    mask = rule.dense(t, s, q.device) if reading is Reading.DENSE else None
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=reading is Reading.CAUSAL, scale=scale
    )  # (B, H, T, Dh)
