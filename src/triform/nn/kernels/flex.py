"""Windows on CUDA: FlexAttention, with lists of the blocks of keys that each block of queries can read.

The lists are computed from the span and the regions of a mask, never from a (T, S) table; they have (T / 128)²
entries. A window of W over T tokens therefore costs T · W. FlexAttention is compiled once for each shape.
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
MIN_HEAD_DIM = 16  # the smallest that its generated code supports
MAX_COMPILED_SHAPES = 64  # with more, torch would stop compiling and compute the whole table

_compiled_shapes: set[tuple[object, ...]] = set()  # compiled already, or in the next call

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class BlockTable(NamedTuple):
    """Which blocks of keys a block of queries may read in part, and which as a whole."""

    any_visible: Tensor  # (T / BLOCK, S / BLOCK), True: some pairs of the block are visible
    all_visible: Tensor  # (T / BLOCK, S / BLOCK), True: all pairs of the block are visible


def is_supported(q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float) -> bool:
    """Return whether FlexAttention supports this: no dropout, lengths in whole blocks, and not too many shapes."""
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
    """Compute attention by code that is compiled for this mask and this score. It has no dropout."""
    return _compiled_flex_attention()(*flex_attention_args(q, k, v, mask, score_fn))


def flex_attention_args(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction
) -> tuple[Any, ...]:
    """Return the arguments of `flex_attention`, in its order."""
    t, s = q.shape[-2], k.shape[-2]
    q, k = score_fn.score.prepare_queries(q), score_fn.score.prepare_keys(k)
    bias = _build_score_mod(mask, score_fn, t, s, q.device)
    return q, k, v, bias, _block_mask(mask, t, s, q.device), score_fn.score.scale, q.shape[1] != k.shape[1]


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # A shape may be compiled several times, for example for training and for evaluation.
    torch._dynamo.config.recompile_limit = max(4 * MAX_COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled


def build_block_table(
    span: AttentionSpan, regions: tuple[Tile, ...], t: int, s: int, *, span_is_exact: bool
) -> BlockTable:
    """Build the table from the first and the last key that each query can read."""
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
    """Return the lists of blocks, shared by masks of one span, with the function of this mask for single pairs."""
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
    """Return for each block of queries how many blocks of keys it reads, and their indices, padded."""
    indices = table.int().argsort(dim=1, descending=True, stable=True)
    return table.sum(1)[None, None].int(), indices[None, None].int()


def _build_score_mod(
    mask: AttentionMask, score_fn: ScoreFunction, t: int, s: int, device: torch.device
) -> ScoreMod | None:
    """Return a function that adds the distance bias, from a table of all distances within the span."""
    if not score_fn.relative_position.has_distance_bias:
        return None
    before, after = (min(limit, max(t, s)) for limit in _bounded_span(mask, t, s))
    table = score_fn.relative_position.distance_bias(torch.arange(-before, after + 1, device=device))  # (H, N)
    offset = before - (s - t)

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # It is also called for pairs outside the span, which are masked afterwards.
        return score + table[h, (k - q + offset).clamp(0, before + after)]

    return add_bias


def _bounded_span(mask: AttentionMask, t: int, s: int) -> AttentionSpan:
    longest = max(max(tile.q_len, tile.k_len) for tile in mask_regions(mask, t, s))
    return AttentionSpan(*(longest if limit == UNBOUNDED else limit for limit in mask_info(mask).span))
