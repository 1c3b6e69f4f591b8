"""Attention: every query takes a mean of the values, weighted by how well it matches their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from triform.config import ModelConfig
from triform.scratch.layers import Chance, dropout, linear
from triform.scratch.part import Array, Back, Part

NEVER = -1e30  # added to the score of a key that may not be read: its weight is exp(-1e30) = 0
LOW = NEVER / 2  # no score of a key that may be read is lower
SMALLEST = 1e-20  # a sum of weights below this has lost digits
Masks = Sequence[Array]  # each is added to the scores (B, H, T, S)
SCALES: dict[str, Callable[[int], float]] = {"scaled_dot": lambda width: 1 / math.sqrt(width), "dot": lambda _: 1.0}


def causal(length: int, dtype: Any) -> Array:  # -> (T, T)
    """Position t reads positions s ≤ t: the future cannot be seen."""
    return np.triu(np.full((length, length), NEVER, dtype), k=1)


def padding(keep: Array, dtype: Any) -> Array:  # (B, S) -> (B, 1, 1, S)
    """Nobody reads what is not real."""
    return np.where(keep, 0, NEVER).astype(dtype)[:, None, None, :]


def softmax(scores: Array) -> Array:
    """w_j = exp(s_j) / Σ_k exp(s_k) over the last axis.

    A number taken from all scores of a row changes nothing, and keeps exp within bounds. The largest score of all
    rows will do, and is found quickly, unless some row lies so far below that nothing is left of it. A row in which
    nothing may be read takes nothing: all its weights are 0.
    """
    weights = np.exp(scores - max(scores.max(), LOW))
    sums = _sums(weights)
    if not sums.min() > SMALLEST:
        weights = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), LOW))
        sums = np.maximum(_sums(weights), SMALLEST)
    weights /= sums
    return weights


def _sums(x: Array) -> Array:  # (…, S) -> (…, 1)
    flat = x.reshape(-1, x.shape[-1])
    return (flat @ np.ones(x.shape[-1], x.dtype)).reshape(*x.shape[:-1], 1)


AttentionBack = Callable[[Array, Array, Array, Array], None]  # dy, and where dq, dk and dv go


def attend(
    q: Array, k: Array, v: Array, masks: Masks, scale: float, rate: float, chance: Chance
) -> tuple[Array, AttentionBack]:  # (B, H, T, Dh), twice (B, H, S, Dh) -> (B, T, H, Dh)
    """softmax(q kᵀ / √Dh + masks) v, where a share `rate` of the weights may be dropped."""
    scores = q @ k.swapaxes(-1, -2)  # (B, H, T, S)
    scores *= scale
    for mask in masks:
        scores += mask
    weights = softmax(scores)
    used, back_dropout = dropout(weights, rate, chance)
    y = np.empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3]), q.dtype)
    np.matmul(used, v, out=y.swapaxes(1, 2))

    def back(dy: Array, dq: Array, dk: Array, dv: Array) -> None:
        # y = w v is a product: dv = wᵀ dy and dw = dy vᵀ. For the softmax, dw_j/ds_i = w_j (δ_ij - w_i), so
        # ds_i = w_i (dw_i - Σ_j w_j dw_j). The scores s = scale · q kᵀ are a product again.
        np.matmul(used.swapaxes(-1, -2), dy, out=dv)
        dw = back_dropout(dy @ v.swapaxes(-1, -2))  # (B, H, T, S)
        dw -= np.einsum("...s,...s->...", weights, dw)[..., None]
        ds = np.multiply(weights, dw, out=dw)
        ds *= scale
        np.matmul(ds, k, out=dq)
        np.matmul(ds.swapaxes(-1, -2), q, out=dk)

    return y, back


class Attention(Part):
    """Queries from `x`, keys and values from `source`, in heads side by side; then all heads mixed."""

    def __init__(self, config: ModelConfig) -> None:
        self.n_heads, self.rate = config.n_heads, config.attention_dropout
        self.scale = SCALES[config.score](config.head_dim)
        self.query = linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.key_value = linear(config.d_model, 2 * config.d_model, bias=config.qkv_bias)
        self.out = linear(config.d_model, config.d_model, bias=config.bias)

    def __call__(
        self, x: Array, source: Array, masks: Masks, chance: Chance
    ) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:  # (B, T, D), (B, S, D) -> (B, T, D)
        asked, back_query = self.query(x)
        told, back_told = self.key_value(source)
        q, (k, v) = self.heads(asked, 1)[0], self.heads(told, 2)
        y, back_heads = attend(q, k, v, masks, self.scale, self.rate, chance)
        mixed, back_out = self.out(y.reshape(x.shape))  # (B, T, D)

        def back(d: Array) -> tuple[Array, Array]:
            """The gradients by `x` and by `source`."""
            d_asked, d_told = np.empty_like(asked), np.empty_like(told)
            dq, (dk, dv) = self.heads(d_asked, 1)[0], self.heads(d_told, 2)
            back_heads(self.heads(back_out(d), 1)[0], dq, dk, dv)
            return back_query(d_asked), back_told(d_told)

        return mixed, back

    def heads(self, x: Array, parts: int) -> Array:  # (B, T, parts · D) -> (parts, B, H, T, Dh)
        """A view: head h is the h-th stretch of the width."""
        b, t, _ = x.shape
        return x.reshape(b, t, parts, self.n_heads, -1).transpose(2, 0, 3, 1, 4)


def self_attention(attention: Attention, masks: Masks, chance: Chance) -> Callable[[Array], tuple[Array, Back]]:
    """Attention of states to themselves. They are read twice, as queries and as keys: the gradients add up."""

    def sublayer(x: Array) -> tuple[Array, Back]:
        y, back_both = attention(x, x, masks, chance)

        def back(dy: Array) -> Array:
            dx, d_source = back_both(dy)
            dx += d_source
            return dx

        return y, back

    return sublayer
