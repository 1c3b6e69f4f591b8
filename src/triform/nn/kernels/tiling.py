"""Cutting attention into pieces, so that what cannot be read is not computed.

A window of W over T tokens becomes short attentions of a few queries over the keys around them: work and memory
grow as T · W. Rows that are packed end to end become one attention each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from triform.nn.masks import AttentionMask, Tile

MIN_TILE_CPU, MIN_TILE_GPU = 64, 1024  # queries a piece; shorter ones spend their time on being started
MAX_CACHED_TILINGS = 64  # ways of cutting that a rule remembers
MAX_TILED_COST = 0.6  # the share of the work that pieces may leave; they must save the rest, for they are many


class MaskKind(Enum):
    """What a piece still hides: nothing, the future (a flag for fused kernels), or what a mask must say."""

    NONE = 0
    CAUSAL = 1
    DENSE = 2


def is_on_gpu(x: Tensor) -> bool:
    """Whether starting a kernel costs more than a few hundred queries."""
    return x.device.type in ("cuda", "mps")


def split_into_tiles(
    mask: AttentionMask, t: int, s: int, *, is_gpu: bool = False, max_queries: int = 0
) -> list[Tile]:
    """Pieces that together hold all that the rule allows; with `most`, of no more queries than that."""
    min_queries = MIN_TILE_GPU if is_gpu else MIN_TILE_CPU
    key = (t, s, min_queries, max_queries)
    tiles = mask.tilings.get(key)
    if tiles is None:
        tiles = [
            tile for region in mask.regions(t, s) for tile in _tile_region(mask, region, min_queries, max_queries)
        ]
        if len(mask.tilings) >= MAX_CACHED_TILINGS:
            mask.tilings.clear()
        mask.tilings[key] = tiles
    return tiles


def _tile_region(mask: AttentionMask, region: Tile, min_queries: int, max_queries: int) -> list[Tile]:
    tile_len = max(min_queries, mask.span.width // 2)
    tiles = list(_iter_tiles(mask, region, min(max_queries or tile_len, tile_len)))
    if (
        len(tiles) == 1
        or sum(tile.q_len * tile.k_len for tile in tiles) <= MAX_TILED_COST * region.q_len * region.k_len
    ):
        return tiles
    return list(_iter_tiles(mask, region, max_queries)) if max_queries else [region]


def _iter_tiles(mask: AttentionMask, region: Tile, tile_len: int) -> Iterator[Tile]:
    """A stretch in pieces of so many queries, each with the keys that one of them can read."""
    before, after = mask.span
    end = region.k_start + region.k_len
    for first in range(0, region.q_len, tile_len):
        t = min(tile_len, region.q_len - first)
        q_position = region.q_position + first
        low = min(max(region.k_start, q_position - before), end)
        high = max(min(end, q_position + t + after), low)
        yield Tile(q_start=region.q_start + first, q_len=t, k_start=low, k_len=high - low, q_position=q_position)


def mask_kind(mask: AttentionMask, tile: Tile) -> MaskKind:
    """How much a kernel must be told about a piece."""
    if not mask.span_is_exact:
        return MaskKind.DENSE
    before, after = mask.span
    sees_all_past = tile.q_position + tile.q_len - 1 - tile.k_start <= before
    if sees_all_past and tile.k_start + tile.k_len - 1 - tile.q_position <= after:
        return MaskKind.NONE
    if sees_all_past and after == 0 and (tile.q_position, tile.q_len) == (tile.k_start, tile.k_len):
        return MaskKind.CAUSAL
    return MaskKind.DENSE


def multi_slice(x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """x[..., start : start + length, :] for each place; where they overlap, gradients add up."""
    if len(ranges) == 1:
        return (x.narrow(-2, *ranges[0]),)
    parts: tuple[Tensor, ...] = _MultiSlice.apply(x, ranges)  # type: ignore[no-untyped-call]
    return parts


class _MultiSlice(torch.autograd.Function):
    """Many slices at once. Slice by slice, the gradient of each would be as large as the whole."""

    @staticmethod
    def forward(x: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        return tuple(x.narrow(-2, *bounds) for bounds in ranges)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.ranges = inputs[0].shape, inputs[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, ranges: Any) -> tuple[tuple[Tensor, ...], int]:
        """Models in a stack stand in a dimension of their own before all others, where slicing leaves them."""
        return multi_slice(x.movedim(in_dims[0], 0), ranges), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.shape)
        for bounds, grad in zip(ctx.ranges, grads, strict=True):
            total.narrow(-2, *bounds).add_(grad)
        return total, None
