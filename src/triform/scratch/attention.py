"""Attention: each query reads a weighted mean of the values; the weights depend on how well it matches the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from triform.config import ModelConfig
from triform.scratch.layers import OptionalRng, build_linear, dropout
from triform.scratch.module import Array, Backward, Module

MASK_VALUE = -1e30  # added to the score of a masked key, so that its weight is exp(-1e30) = 0
MASK_THRESHOLD = MASK_VALUE / 2  # scores of masked keys are lower than this, all others are higher
MIN_WEIGHT_SUM = 1e-20  # a sum of weights below this has lost digits
Masks = Sequence[Array]  # each is added to the scores (B, H, T, S)


def causal_mask(length: int, dtype: Any) -> Array:  # -> (T, T)
    """Return the mask that lets position t read only positions s ≤ t.

    Args:
        length: The number of positions.
        dtype: The type of the scores to which the mask is added.

    Returns:
        0 where a position may be read, and a very negative number elsewhere.
    """
    return np.triu(np.full((length, length), MASK_VALUE, dtype), k=1)


def padding_mask(keep: Array, dtype: Any) -> Array:  # (B, S) -> (B, 1, 1, S)
    """Return the mask that hides padding from all queries.

    Args:
        keep: True for tokens, False for padding.
        dtype: The type of the scores to which the mask is added.

    Returns:
        0 where a position may be read, and a very negative number elsewhere.
    """
    return np.where(keep, 0, MASK_VALUE).astype(dtype)[:, None, None, :]


def softmax(scores: Array) -> Array:
    """Return the softmax over the last axis: w_j = exp(s_j) / Σ_k exp(s_k).

    Subtracting a constant from a row does not change its softmax and keeps exp from overflowing. The maximum over
    all rows is the fastest constant to compute. If a row is so far below it that its weights vanish, the maximum of
    each row is used instead. A row whose keys are all masked has only weights of 0.

    Args:
        scores: Any array; masked scores are very negative.

    Returns:
        Weights of the same shape.

    >>> softmax(np.log([[1.0, 3.0]])).round(2).tolist()
    [[0.25, 0.75]]
    """
    weights = np.exp(scores - max(scores.max(), MASK_THRESHOLD))
    sums = _row_sums(weights)
    if not sums.min() > MIN_WEIGHT_SUM:
        weights = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), MASK_THRESHOLD))
        sums = np.maximum(_row_sums(weights), MIN_WEIGHT_SUM)
    weights /= sums
    return weights


def _row_sums(x: Array) -> Array:  # (…, S) -> (…, 1)
    flat = x.reshape(-1, x.shape[-1])
    return (flat @ np.ones(x.shape[-1], x.dtype)).reshape(*x.shape[:-1], 1)


AttentionBackward = Callable[[Array, Array, Array, Array], None]  # dy, and the arrays that receive dq, dk and dv


def scaled_dot_product_attention(
    q: Array, k: Array, v: Array, masks: Masks, scale: float, rate: float, rng: OptionalRng
) -> tuple[Array, AttentionBackward]:  # (B, H, T, Dh), twice (B, H, S, Dh) -> (B, T, H, Dh)
    """Return softmax(scale · q kᵀ + masks) v, with dropout of `rate` on the weights.

    Args:
        q: The queries of all heads.
        k: The keys.
        v: The values.
        masks: Arrays that are added to the scores.
        scale: The factor of the scores, usually 1/√Dh.
        rate: The dropout probability of the weights.
        rng: The random generator of dropout; None disables dropout.

    Returns:
        The weighted means, with the heads after the positions, and the backward function.
    """
    scores = q @ k.swapaxes(-1, -2)  # (B, H, T, S)
    scores *= scale
    for mask in masks:
        scores += mask
    weights = softmax(scores)
    dropped_weights, dropout_backward = dropout(weights, rate, rng)
    y = np.empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3]), q.dtype)
    np.matmul(dropped_weights, v, out=y.swapaxes(1, 2))

    def backward(dy: Array, dq: Array, dk: Array, dv: Array) -> None:
        # y = w v is a product: dv = wᵀ dy and dw = dy vᵀ. For the softmax, dw_j/ds_i = w_j (δ_ij - w_i), so
        # ds_i = w_i (dw_i - Σ_j w_j dw_j). The scores s = scale · q kᵀ are a product again.
        np.matmul(dropped_weights.swapaxes(-1, -2), dy, out=dv)
        dw = dropout_backward(dy @ v.swapaxes(-1, -2))  # (B, H, T, S)
        dw -= np.einsum("...s,...s->...", weights, dw)[..., None]
        ds = np.multiply(weights, dw, out=dw)
        ds *= scale
        np.matmul(ds, k, out=dq)
        np.matmul(ds.swapaxes(-1, -2), q, out=dk)

    return y, backward


class MultiHeadAttention(Module):
    """Multi-head attention with queries from `x` and keys and values from `source`.

    Args:
        config: The model settings.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.n_heads, self.rate = config.n_heads, config.attention_dropout
        self.scale = config.score_scale
        self.q_proj = build_linear(config.d_model, config.d_model, bias=config.qkv_bias)
        self.kv_proj = build_linear(config.d_model, 2 * config.d_model, bias=config.qkv_bias)
        self.out_proj = build_linear(config.d_model, config.d_model, bias=config.bias)

    def __call__(
        self, x: Array, source: Array, masks: Masks, rng: OptionalRng
    ) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:  # (B, T, D), (B, S, D) -> (B, T, D)
        queries, query_backward = self.q_proj(x)
        keys_values, keys_values_backward = self.kv_proj(source)
        q, (k, v) = self.split_heads(queries, 1)[0], self.split_heads(keys_values, 2)
        y, heads_backward = scaled_dot_product_attention(q, k, v, masks, self.scale, self.rate, rng)
        output, out_backward = self.out_proj(y.reshape(x.shape))  # (B, T, D)

        def backward(dy: Array) -> tuple[Array, Array]:
            """Return the gradients with respect to `x` and to `source`."""
            d_queries, d_keys_values = np.empty_like(queries), np.empty_like(keys_values)
            dq, (dk, dv) = self.split_heads(d_queries, 1)[0], self.split_heads(d_keys_values, 2)
            heads_backward(self.split_heads(out_backward(dy), 1)[0], dq, dk, dv)
            return query_backward(d_queries), keys_values_backward(d_keys_values)

        return output, backward

    def split_heads(self, x: Array, n_parts: int) -> Array:  # (B, T, parts · D) -> (parts, B, H, T, Dh)
        """Return a view with the features split into heads.

        Args:
            x: Features of one or more parts side by side.
            n_parts: 1 for queries, 2 for keys and values.

        Returns:
            A view, so writing to it changes `x`.
        """
        b, t, _ = x.shape
        return x.reshape(b, t, n_parts, self.n_heads, -1).transpose(2, 0, 3, 1, 4)


def self_attention(
    attention: MultiHeadAttention, masks: Masks, rng: OptionalRng
) -> Callable[[Array], tuple[Array, Backward]]:
    """Return attention in which `source` is `x` itself, so that both gradients add up.

    Args:
        attention: The layer.
        masks: Arrays that are added to the scores.
        rng: The random generator of dropout; None disables dropout.

    Returns:
        A function from `x` to the output and the backward function.
    """

    def sublayer(x: Array) -> tuple[Array, Backward]:
        y, attention_backward = attention(x, x, masks, rng)

        def backward(dy: Array) -> Array:
            dx, d_source = attention_backward(dy)
            dx += d_source
            return dx

        return y, backward

    return sublayer
