"""Windows on CUDA: FlexAttention, with lists of the blocks of keys that each block of queries can reach.

The lists come from the span and the regions of a mask, never from a (T, S) table; they have (T / 128)² entries. So
a window of W over T tokens costs T · W here too. FlexAttention is compiled once for each shape.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triform.nn.attention import ScoreFunction
from triform.nn.kernels.sdpa import UNBOUNDED, AttentionSpan, Tile, mask_cache, mask_info
from triform.nn.kernels.tiling import mask_regions
from triform.nn.masks import AttentionMask

BLOCK_SIZE = 128
MIN_HEAD_DIM = 16  # what its generated code can multiply
MAX_COMPILED_SHAPES = 64  # compiled before torch would give up and compute the whole table

_compiled_shapes: set[tuple[object, ...]] = set()  # what was compiled, or is about to be

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class BlockTable(NamedTuple):
    """For each block of queries, which blocks of keys hold something to read, and which nothing but that."""

    any_visible: Tensor  # (T / BLOCK, S / BLOCK), True: part of it may be read
    all_visible: Tensor  # (T / BLOCK, S / BLOCK), True: all of it may be read


def is_supported(q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float) -> bool:
    """Whether FlexAttention can take this: its own limits, lengths in whole blocks, and not a shape too many."""
    is_block_aligned = q.shape[-2] % BLOCK_SIZE == 0 and k.shape[-2] % BLOCK_SIZE == 0
    is_able = not dropout and is_block_aligned and q.shape[-1] >= MIN_HEAD_DIM and find_spec("triton") is not None
    return is_able and _admit_shape(
        (q.shape, k.shape, q.dtype, mask_info(mask).span, mask.batch_size, type(score_fn.relative_position))
    )


def _admit_shape(shape: tuple[object, ...]) -> bool:
    if len(_compiled_shapes) < MAX_COMPILED_SHAPES:
        _compiled_shapes.add(shape)
    return shape in _compiled_shapes


def flex_attention_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Attention as generated for this rule and this matching; no dropout."""
    return _compiled_flex_attention()(*flex_attention_args(q, k, v, mask, score_fn))


def flex_attention_args(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction
) -> tuple[Any, ...]:
    """The arguments of `flex_attention`, in its order."""
    t, s = q.shape[-2], k.shape[-2]
    q, k = score_fn.score.prepare_queries(q), score_fn.score.prepare_keys(k)
    bias = _build_score_mod(mask, score_fn, t, s, q.device)
    return q, k, v, bias, _block_mask(mask, t, s, q.device), score_fn.score.scale, q.shape[1] != k.shape[1]


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # a shape is compiled for training and for evaluation, and may be for more
    torch._dynamo.config.recompile_limit = max(4 * MAX_COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled


def build_block_table(
    span: AttentionSpan, regions: tuple[Tile, ...], t: int, s: int, *, span_is_exact: bool
) -> BlockTable:
    """From the first and the last key that each query can reach."""
    low, high = torch.empty(t, dtype=torch.long), torch.empty(t, dtype=torch.long)
    for tile in regions:
        positions = torch.arange(tile.q_position, tile.q_position + tile.q_len)
        low[tile.q_start : tile.q_start + tile.q_len] = (positions - span.before).clamp(min=tile.k_start)
        high[tile.q_start : tile.q_start + tile.q_len] = (positions + span.after).clamp(
            max=tile.k_start + tile.k_len - 1
        )
    low, high = low.view(-1, BLOCK_SIZE), high.view(-1, BLOCK_SIZE)
    first = torch.arange(0, s, BLOCK_SIZE)
    last = first + BLOCK_SIZE - 1
    any_visible = (low.amin(1)[:, None] <= last) & (high.amax(1)[:, None] >= first)
    all_visible = (low.amax(1)[:, None] <= first) & (high.amin(1)[:, None] >= last)
    return BlockTable(any_visible=any_visible, all_visible=all_visible & span_is_exact)


def _block_mask(mask: AttentionMask, t: int, s: int, device: torch.device) -> Any:
    """Return the lists of blocks, which masks of one span share, with this mask's own function for single pairs."""
    key = (t, s, device)
    cache = mask_cache(mask)
    cached = cache.block_mask  # read once: another thread may replace it at any time
    if cached is None or cached[0] != key:
        info, regions = mask_info(mask), mask_regions(mask, t, s)
        block_mask = copy(_block_lists_mask(info.span, regions, t, s, info.span_is_exact, device))
        block_mask.mask_mod = mask_mod(mask, t, s)
        cached = cache.block_mask = key, block_mask
    return cached[1]


def mask_mod(mask: AttentionMask, t: int, s: int) -> MaskMod:
    """Return the mask as a function of single indices, which FlexAttention compiles."""
    return lambda b, h, q, k: mask.allows(b, q + (s - t), k)


@lru_cache(maxsize=16)
def _block_lists_mask(
    span: AttentionSpan, regions: tuple[Tile, ...], t: int, s: int, span_is_exact: bool, device: torch.device
) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    with torch.inference_mode(False):
        any_visible, all_visible = (
            table.to(device) for table in build_block_table(span, regions, t, s, span_is_exact=span_is_exact)
        )
        return BlockMask.from_kv_blocks(
            *_block_lists(any_visible & ~all_visible),
            *_block_lists(all_visible),
            BLOCK_SIZE=BLOCK_SIZE,
            seq_lengths=(t, s),
        )


def _block_lists(table: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and their numbers first in its row."""
    indices = table.int().argsort(dim=1, descending=True, stable=True)
    return table.sum(1)[None, None].int(), indices[None, None].int()


def _build_score_mod(
    mask: AttentionMask, score_fn: ScoreFunction, t: int, s: int, device: torch.device
) -> ScoreMod | None:
    """What distance adds, as a table of the distances within reach."""
    if not score_fn.relative_position.has_distance_bias:
        return None
    before, after = (min(limit, max(t, s)) for limit in _bounded_span(mask, t, s))
    table = score_fn.relative_position.distance_bias(torch.arange(-before, after + 1, device=device))  # (H, N)
    offset = before - (s - t)

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # pairs out of reach are asked too, and hidden afterwards
        return score + table[h, (k - q + offset).clamp(0, before + after)]

    return add_bias


def _bounded_span(mask: AttentionMask, t: int, s: int) -> AttentionSpan:
    longest = max(max(tile.q_len, tile.k_len) for tile in mask_regions(mask, t, s))
    return AttentionSpan(*(longest if limit == UNBOUNDED else limit for limit in mask_info(mask).span))
