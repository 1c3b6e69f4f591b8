"""Which kernel computes attention: chosen by what is needed and where it runs, never by a setting."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from triform.nn import flash, flex
from triform.nn.kernels import Kernel, Matching, alone, frugal, fused
from triform.nn.masks import Rule
from triform.nn.pieces import cut, on_gpu

LONG = 1024  # from here on a narrow window on CUDA is worth a compilation
NARROW = 4  # a window is narrow when the text is so many times as long


class Choice(NamedTuple):
    """A kernel, and why it was taken."""

    name: str
    kernel: Kernel
    why: str


ALONE = Choice("fused", alone, "torch's fused attention; the newest token reads all there is, nothing is cut")
FORMULA = Choice("formula", frugal, "no dot product gives these weights; a few queries at a time")
FLASH = Choice("flash", flash.flash, "packed rows in half precision on CUDA")
FLEX = Choice("flex", flex.flex, "a window on CUDA; compiled, only blocks within reach are computed")
FUSED = Choice("fused", fused, "torch's fused attention")
PIECES = Choice("fused in pieces", fused, "torch's fused attention on what is within reach, the rest is left out")


def choose(q: Tensor, k: Tensor, rule: Rule, matching: Matching, dropout: float) -> Choice:
    """The fastest kernel that computes this exactly."""
    t, s = q.shape[-2], k.shape[-2]
    if t == 1 and rule.moves and rule.exact and s <= rule.span.before + 1 and matching.is_plain and not dropout:
        return ALONE
    if not matching.score.is_dot or matching.relation.needs_weights:
        return FORMULA
    if q.is_cuda and len(rule.stretches(t, s)) > 1:
        return FLASH if flash.fits(q, rule, matching, dropout) else PIECES
    narrow = NARROW * rule.span.width <= s
    if q.is_cuda and narrow and t >= LONG and flex.fits(q, k, rule, matching, dropout):
        return FLEX
    return FUSED if len(cut(rule, t, s, gpu=on_gpu(q))) == 1 else PIECES


def automatic(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """Attention by the kernel that fits."""
    return choose(q, k, rule, matching, dropout).kernel(q, k, v, rule, matching, dropout)
