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

from triform.nn.kernels import Matching
from triform.nn.masks import FAR, Piece, Rule, Span

BLOCK = 128
NARROWEST_HEAD = 16  # what its generated code can multiply
MOST_SHAPES = 64  # compiled before torch would give up and compute the whole table

_shapes: set[tuple[object, ...]] = set()  # what was compiled, or is about to be

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Blocks(NamedTuple):
    """For each block of queries, which blocks of keys hold something to read, and which nothing but that."""

    some: Tensor  # (T / BLOCK, S / BLOCK), True: part of it may be read
    all: Tensor  # (T / BLOCK, S / BLOCK), True: all of it may be read


def fits(q: Tensor, k: Tensor, rule: Rule, matching: Matching, dropout: float) -> bool:
    """Whether FlexAttention can take this: its own limits, lengths in whole blocks, and not a shape too many."""
    whole_blocks = q.shape[-2] % BLOCK == 0 and k.shape[-2] % BLOCK == 0
    able = not dropout and whole_blocks and q.shape[-1] >= NARROWEST_HEAD and find_spec("triton") is not None
    return able and _admitted((q.shape, k.shape, q.dtype, rule.span, rule.rows, type(matching.relation)))


def _admitted(shape: tuple[object, ...]) -> bool:
    if len(_shapes) < MOST_SHAPES:
        _shapes.add(shape)
    return shape in _shapes


def flex(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """Attention as generated for this rule and this matching; no dropout."""
    return _compiled()(*prepared(q, k, v, rule, matching))


def prepared(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching) -> tuple[Any, ...]:
    """The arguments of `flex_attention`, in its order."""
    t, s = q.shape[-2], k.shape[-2]
    q, k = matching.score.queries(q), matching.score.keys(k)
    bias = _bias(rule, matching, t, s, q.device)
    return q, k, v, bias, _block_mask(rule, t, s, q.device), matching.score.scale, q.shape[1] != k.shape[1]


@cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # a shape is compiled for training and for evaluation, and may be for more
    torch._dynamo.config.recompile_limit = max(4 * MOST_SHAPES, torch._dynamo.config.recompile_limit)
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled


def blocks(span: Span, stretches: tuple[Piece, ...], t: int, s: int, *, exact: bool) -> Blocks:
    """From the first and the last key that each query can reach."""
    low, high = torch.empty(t, dtype=torch.long), torch.empty(t, dtype=torch.long)
    for piece in stretches:
        place = torch.arange(piece.place, piece.place + piece.t)
        low[piece.q : piece.q + piece.t] = (place - span.before).clamp(min=piece.k)
        high[piece.q : piece.q + piece.t] = (place + span.after).clamp(max=piece.k + piece.s - 1)
    low, high = low.view(-1, BLOCK), high.view(-1, BLOCK)
    first = torch.arange(0, s, BLOCK)
    last = first + BLOCK - 1
    some = (low.amin(1)[:, None] <= last) & (high.amax(1)[:, None] >= first)
    every = (low.amax(1)[:, None] <= first) & (high.amin(1)[:, None] >= last)
    return Blocks(some=some, all=every & exact)


def _block_mask(rule: Rule, t: int, s: int, device: torch.device) -> Any:
    """The lists of blocks, which rules of one span share, with this rule's own say on single pairs."""
    key = (t, s, device)
    found = rule.block_mask  # read once: another thread may replace it at any time
    if found is None or found[0] != key:
        none = torch.zeros(0, dtype=torch.long, device=device)
        rule.allows(none, none, none)  # what a rule remembers must be made before it is traced
        mask = copy(_listed(rule.span, rule.stretches(t, s), t, s, rule.exact, device))
        mask.mask_mod = rule.mask_mod(t, s)
        found = rule.block_mask = key, mask
    return found[1]


@lru_cache(maxsize=16)
def _listed(span: Span, stretches: tuple[Piece, ...], t: int, s: int, exact: bool, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    with torch.inference_mode(False):
        some, every = (kind.to(device) for kind in blocks(span, stretches, t, s, exact=exact))
        return BlockMask.from_kv_blocks(
            *_lists(some & ~every), *_lists(every), BLOCK_SIZE=BLOCK, seq_lengths=(t, s)
        )


def _lists(kind: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and their numbers first in its row."""
    numbers = kind.int().argsort(dim=1, descending=True, stable=True)
    return kind.sum(1)[None, None].int(), numbers[None, None].int()


def _bias(rule: Rule, matching: Matching, t: int, s: int, device: torch.device) -> ScoreMod | None:
    """What distance adds, as a table of the distances within reach."""
    if not matching.relation.by_distance:
        return None
    before, after = (min(each, max(t, s)) for each in _reach(rule, t, s))
    table = matching.relation.at(torch.arange(-before, after + 1, device=device))  # (H, N)
    shift = before - (s - t)

    def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # pairs out of reach are asked too, and hidden afterwards
        return score + table[h, (k - q + shift).clamp(0, before + after)]

    return add


def _reach(rule: Rule, t: int, s: int) -> Span:
    longest = max(max(piece.t, piece.s) for piece in rule.stretches(t, s))
    return Span(*(longest if each == FAR else each for each in rule.span))
