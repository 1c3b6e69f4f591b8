"""Attention rules described twice: as Triform's rules, and as a plain condition on three integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from triform.nn.kernels.packing import PackedLayout
from triform.nn.kernels.sdpa import dense_mask, full_tile
from triform.nn.masks import AttentionMask, PaddingMask, causal_mask, full_mask, window_mask

CPU = torch.device("cpu")


@dataclass(frozen=True)
class MaskCase:
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
    def masks(self) -> list[AttentionMask]:
        masks = [causal_mask] if self.causal else []
        masks += [window_mask(self.width)] if self.width else []
        masks += [PackedLayout(self.lengths).mask] if self.lengths else []
        return masks + ([PaddingMask(torch.tensor(self.keep))] if self.keep else [])

    @property
    def mask(self) -> AttentionMask:
        mask = full_mask
        for component in self.masks:
            mask = mask & component
        return mask

    @property
    def sequence_ids(self) -> list[int]:
        """Which text each position belongs to."""
        return [sequence for sequence, length in enumerate(self.lengths or (self.s,)) for _ in range(length)]

    def may_read(self, b: int, i: int, j: int) -> bool:
        """The i-th of the t queries of row b, the j-th of the s keys."""
        position = self.s - self.t + i
        if self.causal and j > position:
            return False
        if self.width and not position - self.width < j < position + self.width:
            return False
        if self.lengths and self.sequence_ids[position] != self.sequence_ids[j]:
            return False
        return not self.keep or self.keep[b][j]

    @property
    def dense_mask(self) -> torch.Tensor:  # (rows, 1, t, s)
        """`may_read` of everything at once: loops where they are short, numbers of positions where they are not."""
        if self.s < 24:
            rows = range(self.rows if self.keep else 1)
            allowed = [[[[self.may_read(b, i, j) for j in range(self.s)] for i in range(self.t)]] for b in rows]
            return torch.tensor(allowed).expand(self.rows, 1, self.t, self.s)
        position, key = torch.arange(self.s - self.t, self.s)[:, None], torch.arange(self.s)
        sequence_ids = torch.tensor(self.sequence_ids)
        dense_mask = sequence_ids[position] == sequence_ids[key]
        if self.causal:
            dense_mask = dense_mask & (key <= position)
        if self.width:
            dense_mask = dense_mask & ((key - position).abs() < self.width)
        keep = torch.tensor(self.keep) if self.keep else torch.ones(self.rows, self.s, dtype=torch.bool)
        return dense_mask & keep[:, None, None]


def dense(mask: AttentionMask, t: int, s: int) -> torch.Tensor:
    """The rule over all of t queries and s keys."""
    return dense_mask(mask, full_tile(t, s), CPU)


def packed_lengths(max_len: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, max_len), min_size=1, max_size=4).map(tuple)


@st.composite
def short_mask_cases(draw: st.DrawFn, max_len: int = 9) -> MaskCase:
    rows = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        lengths = draw(packed_lengths(max(1, max_len // 2)))
        s = sum(lengths)
        return MaskCase(s, s, rows, draw(st.booleans()), draw(st.integers(0, s + 1)), lengths=lengths)
    s = draw(st.integers(1, max_len))
    row = st.tuples(*[st.booleans()] * s)
    return MaskCase(
        t=draw(st.one_of(st.just(s), st.just(1), st.integers(1, s))),
        s=s,
        rows=rows,
        causal=draw(st.booleans()),
        width=draw(st.integers(0, s + 1)),
        keep=draw(st.one_of(st.just(()), st.tuples(*[row] * rows))),
    )


@st.composite
def long_mask_cases(draw: st.DrawFn, max_len: int = 300) -> MaskCase:
    """Long enough that windows are really cut: about a piece, about two, and many, and widths about those."""
    edges = [1, 2, 63, 64, 65, 127, 128, 129, 130, 192, 193]
    length = st.one_of(st.sampled_from(edges), st.integers(1, max_len))
    rows = draw(st.integers(1, 2))
    width = draw(st.sampled_from([0, 1, 2, 3, 9, 31, 32, 33, 63, 64, 65, 128, 400]))
    if draw(st.integers(0, 2)) == 0:
        lengths = draw(
            st.lists(length, min_size=1, max_size=4).map(tuple).filter(lambda keep_mask: sum(keep_mask) <= 400)
        )
        return MaskCase(sum(lengths), sum(lengths), rows, draw(st.booleans()), width, lengths=lengths)
    s = draw(length)
    keep: tuple[tuple[bool, ...], ...] = ()
    if draw(st.booleans()):  # padding on the right, on the left, or holes anywhere
        seed = draw(st.integers(0, 99))
        generator = torch.Generator().manual_seed(seed)
        ends = torch.randint(1, s + 1, (rows, 1), generator=generator)
        right = torch.arange(s) < ends
        keep_mask = [right, right.flip(1), torch.rand(rows, s, generator=generator) < 0.7][seed % 3]
        keep = tuple(tuple(row) for row in keep_mask.tolist())
    t = draw(st.one_of(st.just(s), st.just(s), st.just(1), st.integers(1, s)))
    return MaskCase(t, s, rows, draw(st.booleans()), width, keep)
