"""Windows on CUDA: FlexAttention, told which blocks of keys a block of queries can reach.

The lists of blocks come from the rule's span and stretches, never from a (T, S) table (they are one of (T / 128)²
small numbers), so that a window of W over T tokens costs T · W here too. FlexAttention is compiled once a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triform.nn.kernels.sdpa import ScoreFunction
from triform.nn.masks import UNBOUNDED, AttentionMask, AttentionSpan, Tile

BLOCK_SIZE = 128
MIN_HEAD_DIM = 16  # what its generated code can multiply
MAX_COMPILED_SHAPES = 64  # compiled before torch would give up and compute the whole table

_compiled_shapes: set[tuple[object, ...]] = set()  # what was compiled, or is about to be

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class BlockTable(NamedTuple):
    """For each block of queries, which blocks of keys hold something to read, and which nothing but that."""

    any_visible: Tensor  # (T / BLOCK, S / BLOCK), True: part of it may be read
    all_visible: Tensor  # (T / BLOCK, S / BLOCK), True: all of it may be read


def is_supported(q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float) -> bool:
    """Whether FlexAttention can take this: its own limits, lengths in whole blocks, and not a shape too many."""
    is_block_aligned = q.shape[-2] % BLOCK_SIZE == 0 and k.shape[-2] % BLOCK_SIZE == 0
    is_able = not dropout and is_block_aligned and q.shape[-1] >= MIN_HEAD_DIM and find_spec("triton") is not None
    return is_able and _admit_shape(
        (q.shape, k.shape, q.dtype, mask.span, mask.batch_size, type(score_fn.relative_position))
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
    """The lists of blocks, which rules of one span share, with this rule's own say on single pairs."""
    key = (t, s, device)
    cached = mask.block_mask  # read once: another thread may replace it at any time
    if cached is None or cached[0] != key:
        empty = torch.zeros(0, dtype=torch.long, device=device)
        mask.allows(empty, empty, empty)  # what a rule remembers must be made before it is traced
        block_mask = copy(_block_lists_mask(mask.span, mask.regions(t, s), t, s, mask.span_is_exact, device))
        block_mask.mask_mod = mask.mask_mod(t, s)
        cached = mask.block_mask = key, block_mask
    return cached[1]


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
    longest = max(max(tile.q_len, tile.k_len) for tile in mask.regions(t, s))
    return AttentionSpan(*(longest if limit == UNBOUNDED else limit for limit in mask.span))
