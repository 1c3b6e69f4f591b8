"""Packed rows on CUDA in half precision: flash attention for rows of unequal length.

It takes a span and the ends of the rows instead of a mask, so nothing out of reach is computed, and nothing is
compiled, however the rows of the next batch may lie.
"""

from __future__ import annotations

import inspect
from functools import cache, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from triform.nn.kernels import Matching, spread
from triform.nn.masks import FAR, Rule

HALF = (torch.bfloat16, torch.float16)


def fits(q: Tensor, rule: Rule, matching: Matching, dropout: float) -> bool:
    """Whether it can take this: half precision, nothing added to the scores, no dropout, all said by the span."""
    plain = rule.exact and not matching.relation.by_distance and not dropout
    return plain and q.dtype in HALF and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and _offered()


@cache
def _offered() -> bool:
    """Whether this torch has it, with windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


def flash(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """Attention within each row, no farther than the rule's span."""
    from torch.nn.attention.varlen import varlen_attn

    score = matching.score
    b, _, t, _ = q.shape
    ends, source_ends = row_ends(rule, b, t, k.shape[-2])
    y = varlen_attn(
        _flat(score.queries(q)),
        _flat(spread(score.keys(k), q)),
        _flat(spread(v, q)),
        cu_seq_q=_on(ends, q.device),
        cu_seq_k=_on(source_ends, q.device),
        max_q=_longest(ends),
        max_k=_longest(source_ends),
        scale=score.scale,
        window_size=_window(rule),
    )  # (B * T, H, Dh)
    assert isinstance(y, Tensor)
    return y.view(b, t, *y.shape[1:]).transpose(1, 2)  # (B, H, T, Dh)


def row_ends(rule: Rule, b: int, t: int, s: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where rows end when the whole batch lies end to end, of queries and of keys."""
    pieces = rule.stretches(t, s) * b
    queries, keys = (piece.t for piece in pieces), (piece.s for piece in pieces)
    return tuple(accumulate(queries, initial=0)), tuple(accumulate(keys, initial=0))


def _window(rule: Rule) -> tuple[int, int]:
    before, after = (-1 if each == FAR else each for each in rule.span)
    return before, after


def _flat(x: Tensor) -> Tensor:  # (B, H, T, Dh) -> (B * T, H, Dh)
    return x.transpose(1, 2).flatten(0, 1)


def _longest(ends: tuple[int, ...]) -> int:
    return max(end - start for start, end in pairwise(ends))


@lru_cache(maxsize=64)
def _on(ends: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(ends, dtype=torch.int32, device=device)
