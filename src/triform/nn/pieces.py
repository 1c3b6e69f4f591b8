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

from triform.nn.masks import Piece, Rule

SHORTEST, SHORTEST_ON_GPU = 64, 1024  # queries a piece; shorter ones spend their time on being started
MOST_KEPT = 64  # ways of cutting that a rule remembers
WORTH_IT = 0.6  # the share of the work that pieces may leave; they must save the rest, for they are many


class Hidden(Enum):
    """What a piece still hides: nothing, the future (a flag for fused kernels), or what a mask must say."""

    NOTHING = 0
    FUTURE = 1
    SOMETHING = 2


def on_gpu(x: Tensor) -> bool:
    """Whether starting a kernel costs more than a few hundred queries."""
    return x.device.type in ("cuda", "mps")


def cut(rule: Rule, t: int, s: int, *, gpu: bool = False, most: int = 0) -> list[Piece]:
    """Pieces that together hold all that the rule allows; with `most`, of no more queries than that."""
    shortest = SHORTEST_ON_GPU if gpu else SHORTEST
    key = (t, s, shortest, most)
    pieces = rule.pieces.get(key)
    if pieces is None:
        pieces = [piece for each in rule.stretches(t, s) for piece in _cut(rule, each, shortest, most)]
        if len(rule.pieces) >= MOST_KEPT:
            rule.pieces.clear()
        rule.pieces[key] = pieces
    return pieces


def _cut(rule: Rule, stretch: Piece, shortest: int, most: int) -> list[Piece]:
    length = max(shortest, rule.span.width // 2)
    short = list(_short(rule, stretch, min(most or length, length)))
    if len(short) == 1 or sum(p.t * p.s for p in short) <= WORTH_IT * stretch.t * stretch.s:
        return short
    return list(_short(rule, stretch, most)) if most else [stretch]


def _short(rule: Rule, stretch: Piece, length: int) -> Iterator[Piece]:
    """A stretch in pieces of so many queries, each with the keys that one of them can read."""
    before, after = rule.span
    end = stretch.k + stretch.s
    for first in range(0, stretch.t, length):
        t = min(length, stretch.t - first)
        place = stretch.place + first
        low = min(max(stretch.k, place - before), end)
        high = max(min(end, place + t + after), low)
        yield Piece(q=stretch.q + first, t=t, k=low, s=high - low, place=place)


def hidden(rule: Rule, piece: Piece) -> Hidden:
    """How much a kernel must be told about a piece."""
    if not rule.exact:
        return Hidden.SOMETHING
    before, after = rule.span
    all_before = piece.place + piece.t - 1 - piece.k <= before
    if all_before and piece.k + piece.s - 1 - piece.place <= after:
        return Hidden.NOTHING
    if all_before and after == 0 and (piece.place, piece.t) == (piece.k, piece.s):
        return Hidden.FUTURE
    return Hidden.SOMETHING


def spans(x: Tensor, places: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """x[..., start : start + length, :] for each place; where they overlap, gradients add up."""
    if len(places) == 1:
        return (x.narrow(-2, *places[0]),)
    parts: tuple[Tensor, ...] = _Spans.apply(x, places)  # type: ignore[no-untyped-call]
    return parts


class _Spans(torch.autograd.Function):
    """Many slices at once. Slice by slice, the gradient of each would be as large as the whole."""

    @staticmethod
    def forward(x: Tensor, places: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        return tuple(x.narrow(-2, *place) for place in places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.places = inputs[0].shape, inputs[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, places: Any) -> tuple[tuple[Tensor, ...], int]:
        """Models in a stack stand in a dimension of their own before all others, where slicing leaves them."""
        return spans(x.movedim(in_dims[0], 0), places), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.shape)
        for place, grad in zip(ctx.places, grads, strict=True):
            total.narrow(-2, *place).add_(grad)
        return total, None
