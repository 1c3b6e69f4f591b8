"""Attention rules described twice: as Triform's rules, and as a plain condition on three integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from triform.nn.masks import Rule, causal, everything, real, whole, window
from triform.nn.rows import Packed

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """`t` queries, the last of `s` positions, in `rows` rows; `width` 0: no window, no `keep`: no padding.

    With `lengths`, each row of the tensor holds so many texts end to end.
    """

    t: int
    s: int
    rows: int = 2
    causal: bool = False
    width: int = 0
    keep: tuple[tuple[bool, ...], ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def parts(self) -> list[Rule]:
        chosen = [causal] if self.causal else []
        chosen += [window(self.width)] if self.width else []
        chosen += [Packed(self.lengths).rule] if self.lengths else []
        return chosen + ([real(torch.tensor(self.keep))] if self.keep else [])

    @property
    def rule(self) -> Rule:
        rule = everything
        for part in self.parts:
            rule = rule & part
        return rule

    @property
    def owners(self) -> list[int]:
        """Which text each position belongs to."""
        return [text for text, length in enumerate(self.lengths or (self.s,)) for _ in range(length)]

    def may_read(self, b: int, i: int, j: int) -> bool:
        """The i-th of the t queries of row b, the j-th of the s keys."""
        place = self.s - self.t + i
        if self.causal and j > place:
            return False
        if self.width and not place - self.width < j < place + self.width:
            return False
        if self.lengths and self.owners[place] != self.owners[j]:
            return False
        return not self.keep or self.keep[b][j]

    @property
    def table(self) -> torch.Tensor:  # (rows, 1, t, s)
        """`may_read` of everything at once: loops where they are short, numbers of positions where they are not."""
        if self.s < 24:
            rows = range(self.rows if self.keep else 1)
            answers = [[[[self.may_read(b, i, j) for j in range(self.s)] for i in range(self.t)]] for b in rows]
            return torch.tensor(answers).expand(self.rows, 1, self.t, self.s)
        place, key = torch.arange(self.s - self.t, self.s)[:, None], torch.arange(self.s)
        owner = torch.tensor(self.owners)
        table = owner[place] == owner[key]
        if self.causal:
            table = table & (key <= place)
        if self.width:
            table = table & ((key - place).abs() < self.width)
        keep = torch.tensor(self.keep) if self.keep else torch.ones(self.rows, self.s, dtype=torch.bool)
        return table & keep[:, None, None]


def dense(rule: Rule, t: int, s: int) -> torch.Tensor:
    """The rule over all of t queries and s keys."""
    return rule.dense(whole(t, s), CPU)


def packings(longest: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, longest), min_size=1, max_size=4).map(tuple)


@st.composite
def cases(draw: st.DrawFn, longest: int = 9) -> Case:
    rows = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        lengths = draw(packings(max(1, longest // 2)))
        s = sum(lengths)
        return Case(s, s, rows, draw(st.booleans()), draw(st.integers(0, s + 1)), lengths=lengths)
    s = draw(st.integers(1, longest))
    row = st.tuples(*[st.booleans()] * s)
    return Case(
        t=draw(st.one_of(st.just(s), st.just(1), st.integers(1, s))),
        s=s,
        rows=rows,
        causal=draw(st.booleans()),
        width=draw(st.integers(0, s + 1)),
        keep=draw(st.one_of(st.just(()), st.tuples(*[row] * rows))),
    )


@st.composite
def long_cases(draw: st.DrawFn, longest: int = 300) -> Case:
    """Long enough that windows are really cut: about a piece, about two, and many, and widths about those."""
    edges = [1, 2, 63, 64, 65, 127, 128, 129, 130, 192, 193]
    length = st.one_of(st.sampled_from(edges), st.integers(1, longest))
    rows = draw(st.integers(1, 2))
    width = draw(st.sampled_from([0, 1, 2, 3, 9, 31, 32, 33, 63, 64, 65, 128, 400]))
    if draw(st.integers(0, 2)) == 0:
        lengths = draw(st.lists(length, min_size=1, max_size=4).map(tuple).filter(lambda some: sum(some) <= 400))
        return Case(sum(lengths), sum(lengths), rows, draw(st.booleans()), width, lengths=lengths)
    s = draw(length)
    keep: tuple[tuple[bool, ...], ...] = ()
    if draw(st.booleans()):  # padding on the right, on the left, or holes anywhere
        seed = draw(st.integers(0, 99))
        numbers = torch.Generator().manual_seed(seed)
        ends = torch.randint(1, s + 1, (rows, 1), generator=numbers)
        right = torch.arange(s) < ends
        some = [right, right.flip(1), torch.rand(rows, s, generator=numbers) < 0.7][seed % 3]
        keep = tuple(tuple(row) for row in some.tolist())
    t = draw(st.one_of(st.just(s), st.just(s), st.just(1), st.integers(1, s)))
    return Case(t, s, rows, draw(st.booleans()), width, keep)
