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

from triform.nn.kernels.tiling import MaskKind, is_on_gpu, mask_kind, multi_slice, split_into_tiles
from triform.nn.masks import AttentionMask, Tile, full_tile
from triform.nn.positions import RelativePosition
from triform.nn.scores import AttentionScore

MAX_CHUNK_ELEMENTS_CPU, MAX_CHUNK_ELEMENTS_GPU = 1 << 22, 1 << 26  # numbers that `frugal` lets one piece hold
MAX_KEY_REUSE = 4  # pieces that may share a key before each is sliced by itself


class ScoreFunction(nn.Module):
    """How queries match keys: how alike they are, and what their distance adds."""

    def __init__(self, score: AttentionScore, relative_position: RelativePosition) -> None:
        super().__init__()
        self.score, self.relative_position = score, relative_position
        self.is_plain_dot_product = (
            score.is_dot_product and not relative_position.has_distance_bias and not relative_position.needs_weights
        )

    def forward(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:  # -> (B, H, T, S)
        scaled_queries = self.score.prepare_queries(q) * self.score.scale
        return self.score(q, repeat_kv(k, q)) + self.relative_position.score_bias(scaled_queries, distances)


class AttentionKernel(Protocol):
    """q (B, H, T, Dh), k and v (B, G, S, Dh) -> (B, H, T, Dh)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
    ) -> Tensor: ...


def repeat_kv(x: Tensor, q: Tensor) -> Tensor:  # (B, G, S, Dh) -> (B, H, S, Dh)
    """Shared heads of keys or values, repeated for the query heads that they serve."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def attention_weights(
    q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, tile: Tile | None = None
) -> Tensor:
    """How much each query attends to each key: (B, H, T, S), rows summing to one."""
    tile = tile or full_tile(q.shape[-2], k.shape[-2])
    scores = score_fn(q, k, mask.distances(tile, q.device))  # (B, H, T, S)
    keep = mask.dense(tile, q.device)
    weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    return weights.masked_fill(~keep, 0.0)  # a row with nothing to read is NaN until here


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    score_fn: ScoreFunction,
    dropout: float,
    tile: Tile | None = None,
) -> Tensor:
    """softmax(score(q, k) + bias) v, step by step."""
    tile = tile or full_tile(q.shape[-2], k.shape[-2])
    weights = attention_weights(q, k, mask, score_fn, tile)
    weights = F.dropout(weights, dropout, training=dropout > 0).to(v.dtype)
    value_bias = score_fn.relative_position.value_bias(weights, mask.distances(tile, q.device))
    return weights @ repeat_kv(v, q) + value_bias  # (B, H, T, Dh)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float,
    sdpa: Callable[..., Tensor] = F.scaled_dot_product_attention,
) -> Tensor:  # fmt: skip
    """The same through torch's fused attention, which never writes the (T, S) weights to memory."""
    score = score_fn.score

    def attend_tile(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        kind = mask_kind(mask, tile)
        has_distance_bias = score_fn.relative_position.has_distance_bias
        is_causal = kind is MaskKind.CAUSAL and not has_distance_bias
        keep = None if is_causal or kind is MaskKind.NONE else mask.dense(tile, q.device)
        attn_mask, masked_queries = keep, None
        if q.is_cuda and keep is not None and not mask.span_is_exact and not has_distance_bias:
            attn_mask, masked_queries = mask.additive_bias(
                tile, q.device, q.dtype
            )  # made once, not by each layer's kernel
        if has_distance_bias:
            bias = score_fn.relative_position.score_bias(q, mask.distances(tile, q.device))  # (1, H, T, S)
            attn_mask = bias if keep is None else bias.masked_fill(~keep, float("-inf"))
        y = sdpa(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal, scale=score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if keep is None or mask.span_is_exact or not mask.may_mask_all_keys or not q.is_cuda:
            return y
        # cuDNN's kernel gives a query that may read nothing the mean of all values
        return y.masked_fill(~keep.any(dim=-1, keepdim=True) if masked_queries is None else masked_queries, 0.0)

    tiles = split_into_tiles(mask, q.shape[-2], k.shape[-2], is_gpu=is_on_gpu(q))
    return _attend_tiles(attend_tile, score.prepare_queries(q), score.prepare_keys(k), v, tiles)


def single_query_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """One query that reads every key, by dot product alone: a decoding step with as few calls as there can be."""
    score = score_fn.score
    return F.scaled_dot_product_attention(
        score.prepare_queries(q), score.prepare_keys(k), v, scale=score.scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """The formula a few queries at a time, computed again when gradients are: memory grows with T, not T²."""

    def attend_tile(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        return naive_attention(q, k, v, mask, score_fn, dropout, tile)

    def attend_tile_recomputed(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        mask.dense(tile, q.device)  # remembered from here on: what is computed again must leave no trace
        return checkpoint(attend_tile, q, k, v, tile, use_reentrant=False)

    t, s = q.shape[-2], k.shape[-2]
    elements_per_pair = max(1, q.shape[0] * q.shape[1] * score_fn.score.elements_per_pair(q.shape[-1]))
    is_gpu = is_on_gpu(q)
    max_pairs = (MAX_CHUNK_ELEMENTS_GPU if is_gpu else MAX_CHUNK_ELEMENTS_CPU) // elements_per_pair
    tiles = split_into_tiles(
        mask, t, s, is_gpu=is_gpu, max_queries=_max_chunk_queries(max_pairs, s, mask.span.width)
    )
    return _attend_tiles(
        attend_tile_recomputed if len(tiles) > 1 and torch.is_grad_enabled() else attend_tile, q, k, v, tiles
    )


def _max_chunk_queries(max_pairs: int, s: int, width: int) -> int:
    """How many queries have at most so many pairs with their keys: n of them see n - 1 + width keys, or all s."""
    windowed = (math.isqrt((width - 1) ** 2 + 4 * max_pairs) - (width - 1)) // 2
    return max(1, max_pairs // max(1, s), windowed)


TileAttentionFn = Callable[[Tensor, Tensor, Tensor, Tile], Tensor]


def _attend_slice(attend_tile: TileAttentionFn, q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
    k, v = (x.narrow(-2, tile.k_start, tile.k_len) for x in (k, v))
    return attend_tile(q.narrow(-2, tile.q_start, tile.q_len), k, v, tile)


def _attend_tiles(attend_tile: TileAttentionFn, q: Tensor, k: Tensor, v: Tensor, tiles: list[Tile]) -> Tensor:
    """Attend within each piece, and put the answers together."""
    if tiles == [full_tile(q.shape[-2], k.shape[-2])]:
        return attend_tile(q, k, v, tiles[0])
    # Where each key is in many pieces, their gradients must not wait for one another: they would be T³ numbers.
    if sum(tile.k_len for tile in tiles) > MAX_KEY_REUSE * k.shape[-2]:
        return torch.cat([_attend_slice(attend_tile, q, k, v, tile) for tile in tiles], dim=-2)
    key_ranges = [(tile.k_start, tile.k_len) for tile in tiles]
    queries = multi_slice(q, [(tile.q_start, tile.q_len) for tile in tiles])
    parts = zip(queries, multi_slice(k, key_ranges), multi_slice(v, key_ranges), tiles, strict=True)
    return torch.cat([attend_tile(*part) for part in parts], dim=-2)
