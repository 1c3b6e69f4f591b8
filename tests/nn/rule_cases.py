"""Attention rules described twice: as Triform's rules, and as a plain condition on three integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from triform.nn.masks import Rule, causal, everything, real, window

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """`t` queries, the last of `s` positions, in `rows` rows; `width` 0: no window, no `keep`: no padding."""

    t: int
    s: int
    rows: int = 2
    causal: bool = False
    width: int = 0
    keep: tuple[tuple[bool, ...], ...] = ()

    @property
    def parts(self) -> list[Rule]:
        chosen = [causal] if self.causal else []
        chosen += [window(self.width)] if self.width else []
        return chosen + ([real(torch.tensor(self.keep))] if self.keep else [])

    @property
    def rule(self) -> Rule:
        rule = everything
        for part in self.parts:
            rule = rule & part
        return rule

    def may_read(self, b: int, i: int, j: int) -> bool:
        """The i-th of the t queries of row b, the j-th of the s keys."""
        place = self.s - self.t + i
        if self.causal and j > place:
            return False
        if self.width and not place - self.width < j < place + self.width:
            return False
        return not self.keep or self.keep[b][j]

    @property
    def table(self) -> torch.Tensor:  # (rows, 1, t, s)
        return torch.tensor(
            [[[[self.may_read(b, i, j) for j in range(self.s)] for i in range(self.t)]] for b in range(self.rows)]
        )


@st.composite
def cases(draw: st.DrawFn, longest: int = 9) -> Case:
    s = draw(st.integers(1, longest))
    rows = draw(st.integers(1, 3))
    row = st.tuples(*[st.booleans()] * s)
    return Case(
        t=draw(st.one_of(st.just(s), st.just(1), st.integers(1, s))),
        s=s,
        rows=rows,
        causal=draw(st.booleans()),
        width=draw(st.integers(0, s + 1)),
        keep=draw(st.one_of(st.just(()), st.tuples(*[row] * rows))),
    )
