"""Attention in tiles, so that what cannot be read is not computed.

A window of W over T tokens becomes short attentions of a few queries over the keys around them: work and memory
grow as T · W. Packed sequences become one attention each. `chunked_attention` computes the naive formula in tiles,
for scores that no fused kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from triform.nn.attention import ScoreFunction, naive_attention
from triform.nn.kernels.packing import PackedMask
from triform.nn.kernels.sdpa import (
    Tile,
    attend_tile,
    dense_mask,
    full_tile,
    is_gpu,
    mask_cache,
    mask_info,
    min_tile_len,
    tile_distances,
)
from triform.nn.masks import AndMask, AttentionMask

MAX_CACHED_TILINGS = 64  # of one mask
MAX_TILED_COST = 0.6  # tiles must save at least 40 % of the work, because they are many calls
MAX_CHUNK_ELEMENTS_CPU, MAX_CHUNK_ELEMENTS_GPU = 1 << 22, 1 << 26  # numbers that one tile of the formula may hold
MAX_KEY_REUSE = 4  # tiles that may share a key before the tiles are sliced one by one


def mask_regions(mask: AttentionMask, t: int, s: int) -> tuple[Tile, ...]:
    """Return the tiles that do not read each other: one for each packed sequence, else one for everything."""
    for part in mask.masks if isinstance(mask, AndMask) else (mask,):
        if isinstance(part, PackedMask):
            lengths = sum(part.lengths), sum(part.source_lengths)
            assert (t, s) == lengths, "packed sequences must be read as a whole"
            starts = accumulate(part.lengths, initial=0)
            source_starts = accumulate(part.source_lengths, initial=0)
            bounds = zip(starts, part.lengths, source_starts, part.source_lengths, strict=False)
            return tuple(Tile(*bound, q_position=bound[0] + part.query_offset) for bound in bounds)
    return (full_tile(t, s),)


def split_into_tiles(mask: AttentionMask, t: int, s: int, *, min_len: int, max_queries: int = 0) -> list[Tile]:
    """Return tiles that together cover everything the mask allows.

    Args:
        mask: The mask.
        t: Number of queries.
        s: Number of keys.
        min_len: Number of queries below which a tile is not worth its call.
        max_queries: The most queries that a tile may have; 0 means no limit.
    """
    key, tilings = (t, s, min_len, max_queries), mask_cache(mask).tilings
    tiles = tilings.get(key)
    if tiles is None:
        regions = mask_regions(mask, t, s)
        tiles = [tile for region in regions for tile in _tile_region(mask, region, min_len, max_queries)]
        if len(tilings) >= MAX_CACHED_TILINGS:
            tilings.clear()
        tilings[key] = tiles
    return tiles


def _tile_region(mask: AttentionMask, region: Tile, min_len: int, max_queries: int) -> list[Tile]:
    tile_len = max(min_len, mask_info(mask).span.width // 2)
    tiles = list(_iter_tiles(mask, region, min(max_queries or tile_len, tile_len)))
    tiled_cost = sum(tile.q_len * tile.k_len for tile in tiles)
    if len(tiles) == 1 or tiled_cost <= MAX_TILED_COST * region.q_len * region.k_len:
        return tiles
    return list(_iter_tiles(mask, region, max_queries)) if max_queries else [region]


def _iter_tiles(mask: AttentionMask, region: Tile, tile_len: int) -> Iterator[Tile]:
    """Cut a region into tiles of `tile_len` queries, each with the keys that one of them can read."""
    before, after = mask_info(mask).span
    end = region.k_start + region.k_len
    for first in range(0, region.q_len, tile_len):
        t = min(tile_len, region.q_len - first)
        q_position = region.q_position + first
        low = min(max(region.k_start, q_position - before), end)
        high = max(min(end, q_position + t + after), low)
        yield Tile(q_start=region.q_start + first, q_len=t, k_start=low, k_len=high - low, q_position=q_position)


class TileMask(AttentionMask):
    """One tile of a mask, as the naive formula reads masks."""

    def __init__(self, mask: AttentionMask, tile: Tile) -> None:
        self.mask, self.tile = mask, tile

    def dense(self, t: int, s: int, device: torch.device) -> Tensor:
        """Return the tile's dense mask, from the cache where possible."""
        return dense_mask(self.mask, self.tile, device)

    def distances(self, t: int, s: int, device: torch.device) -> Tensor:
        """Return the tile's distances."""
        return tile_distances(self.mask, self.tile, device)


def tiled_sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float,
    sdpa: Callable[..., Tensor] = F.scaled_dot_product_attention,
) -> Tensor:  # fmt: skip
    """Compute attention by the fused kernel, one call for each tile."""

    def attend(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        return attend_tile(q, k, v, mask, tile, score_fn, dropout, sdpa)

    tiles = split_into_tiles(mask, q.shape[-2], k.shape[-2], min_len=min_tile_len(q))
    return _attend_tiles(attend, score_fn.score.prepare_queries(q), score_fn.score.prepare_keys(k), v, tiles)


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute the naive formula a few queries at a time, and again for gradients: memory grows with T, not T²."""

    def attend(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        return naive_attention(q, k, v, TileMask(mask, tile), score_fn, dropout)

    def attend_and_recompute(q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
        dense_mask(mask, tile, q.device)  # cached from here on, so that both passes do the same
        return checkpoint(attend, q, k, v, tile, use_reentrant=False)

    t, s = q.shape[-2], k.shape[-2]
    elements_per_pair = max(1, q.shape[0] * q.shape[1] * (1 if score_fn.score.is_dot_product else q.shape[-1]))
    max_elements = MAX_CHUNK_ELEMENTS_GPU if is_gpu(q) else MAX_CHUNK_ELEMENTS_CPU
    max_queries = _max_chunk_queries(max_elements // elements_per_pair, s, mask_info(mask).span.width)
    tiles = split_into_tiles(mask, t, s, min_len=min_tile_len(q), max_queries=max_queries)
    recompute = len(tiles) > 1 and torch.is_grad_enabled()
    return _attend_tiles(attend_and_recompute if recompute else attend, q, k, v, tiles)


def _max_chunk_queries(max_pairs: int, s: int, width: int) -> int:
    """Return how many queries have at most `max_pairs` with their keys: n of them see n - 1 + width keys."""
    windowed = (math.isqrt((width - 1) ** 2 + 4 * max_pairs) - (width - 1)) // 2
    return max(1, max_pairs // max(1, s), windowed)


TileAttentionFn = Callable[[Tensor, Tensor, Tensor, Tile], Tensor]


def _attend_slice(attend: TileAttentionFn, q: Tensor, k: Tensor, v: Tensor, tile: Tile) -> Tensor:
    k, v = (x.narrow(-2, tile.k_start, tile.k_len) for x in (k, v))
    return attend(q.narrow(-2, tile.q_start, tile.q_len), k, v, tile)


def _attend_tiles(attend: TileAttentionFn, q: Tensor, k: Tensor, v: Tensor, tiles: list[Tile]) -> Tensor:
    """Attend within each tile and concatenate the results."""
    if tiles == [full_tile(q.shape[-2], k.shape[-2])]:
        return attend(q, k, v, tiles[0])
    # If each key is in many tiles, the gradients are added one by one; all together would be T³ numbers.
    if sum(tile.k_len for tile in tiles) > MAX_KEY_REUSE * k.shape[-2]:
        return torch.cat([_attend_slice(attend, q, k, v, tile) for tile in tiles], dim=-2)
    key_ranges = [(tile.k_start, tile.k_len) for tile in tiles]
    queries = multi_slice(q, [(tile.q_start, tile.q_len) for tile in tiles])
    parts = zip(queries, multi_slice(k, key_ranges), multi_slice(v, key_ranges), tiles, strict=True)
    return torch.cat([attend(*part) for part in parts], dim=-2)


def multi_slice(x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Return `x[..., start : start + length, :]` for each range; gradients of overlapping ranges add up."""
    if len(ranges) == 1:
        return (x.narrow(-2, *ranges[0]),)
    parts: tuple[Tensor, ...] = _MultiSlice.apply(x, ranges)  # type: ignore[no-untyped-call]
    return parts


class _MultiSlice(torch.autograd.Function):
    """Many slices at once. Taken one by one, each slice would have a gradient as large as `x`."""

    @staticmethod
    def forward(x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        return tuple(x.narrow(-2, *bounds) for bounds in ranges)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.ranges = inputs[0].shape, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.shape)
        for bounds, grad in zip(ctx.ranges, grads, strict=True):
            total.narrow(-2, *bounds).add_(grad)
        return total, None
