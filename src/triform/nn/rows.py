"""How the rows of a batch lie in a tensor: side by side and padded, or packed end to end without padding.

A model asks the rows where their tokens stand, what hides one row from another, and for means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from triform.nn.masks import Newest, Rule, Together, real, within


class Rows(Protocol):
    def rules(self, reaches: Sequence[Rule]) -> list[Rule]:
        """What self-attention may read in each layer, given how far it reaches."""

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        """Where the t tokens from `start` on stand in their rows."""

    def read_by(self, queries: Rows) -> Rule:
        """What cross-attention may read of these rows, asked from `queries`."""

    def mean(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The mean over the real tokens of each row."""

    def first(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The first token of each row."""

    def last(self, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """The last real token of each row."""


class Padded:
    """A row of the tensor is a row of the batch; `keep` (B, T) says what is real, None: everything."""

    def __init__(self, keep: Tensor | None) -> None:
        self.keep, self.rule = keep, real(keep)

    def rules(self, reaches: Sequence[Rule]) -> list[Rule]:
        return within(reaches, self.rule)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        return torch.arange(start, start + t, device=device)

    def read_by(self, queries: Rows) -> Rule:
        return self.rule

    def mean(self, x: Tensor) -> Tensor:
        if self.keep is None:
            return x.mean(dim=1)
        share = self.keep[:, :, None].to(x.dtype)
        return (x * share).sum(dim=1) / share.sum(dim=1).clamp(min=1)

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def last(self, x: Tensor) -> Tensor:
        if self.keep is None:
            return x[:, -1]
        places = self.keep.shape[1] - 1 - self.keep.flip(1).long().argmax(dim=1)
        return x.gather(1, places[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]

    def apart(self, x: Tensor) -> Tensor:
        """Rows side by side: as they are."""
        return x

    def together(self, x: Tensor) -> Tensor:
        return x

    def backwards(self, t: int, device: torch.device) -> Tensor:  # -> (B or 1, T)
        """The places of each row from its end to its beginning; it ends where its padding begins."""
        places = torch.arange(t, device=device)
        if self.keep is None:
            return places.flip(0)[None]
        behind = self.keep.sum(dim=1, keepdim=True) - 1 - places
        return torch.where(behind < 0, places, behind)


class Packed:
    """All rows end to end in the tensor's only row (1, N)."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.rule = Together(self.lengths, self.lengths)
        self._sizes: Tensor | None = None
        self._starts: Tensor | None = None

    def rules(self, reaches: Sequence[Rule]) -> list[Rule]:
        return within(reaches, self.rule)

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        assert (start, t) == (0, sum(self.lengths)), "packed rows are read whole"
        return torch.cat([torch.arange(length, device=device) for length in self.lengths])

    def read_by(self, queries: Rows) -> Rule:
        assert isinstance(queries, Packed), "where one side is packed, so is the other"
        return Together(queries.lengths, self.lengths)

    def mean(self, x: Tensor) -> Tensor:
        if self._sizes is None or self._sizes.device != x.device:  # sent there once, not in every pass
            self._sizes = torch.tensor(self.lengths, device=x.device)[:, None].clamp(min=1)
        owners, _ = self.rule.owners(x.device)
        wide = torch.promote_types(x.dtype, torch.float32)  # in bf16 a long row would stop growing
        sums = x.new_zeros(len(self.lengths), x.shape[-1], dtype=wide).index_add(0, owners, x[0].to(wide))
        return (sums / self._sizes.to(wide)).to(x.dtype)

    def first(self, x: Tensor) -> Tensor:
        if self._starts is None or self._starts.device != x.device:
            self._starts = torch.tensor([0, *accumulate(self.lengths[:-1])], device=x.device)
        return x[0].index_select(0, self._starts)

    def last(self, x: Tensor) -> Tensor:
        return x[0].index_select(0, torch.tensor([*accumulate(self.lengths)], device=x.device) - 1)

    def apart(self, x: Tensor) -> Tensor:  # (1, N, D) -> (rows, T, D)
        """Rows side by side, for who reads them one token after the other."""
        return pad_sequence(list(x[0].split(self.lengths)), batch_first=True)  # type: ignore[no-untyped-call]

    def together(self, x: Tensor) -> Tensor:  # (rows, T, D) -> (1, N, D)
        """The same end to end again."""
        return torch.cat([row[:length] for row, length in zip(x, self.lengths, strict=True)])[None]

    def backwards(self, t: int, device: torch.device) -> Tensor:
        """Of rows that lie side by side."""
        keep = torch.arange(t, device=device) < torch.tensor(self.lengths, device=device)[:, None]
        return Padded(keep).backwards(t, device)


class Hypotheses:
    """One new token for each of the T ways in which a row goes on, read over a past that they share.

    `keep` (B, T, S) says which keys belong to each, `age` (S) when they were written, `places` (B, T) where the
    new tokens stand in their texts.
    """

    def __init__(self, keep: Tensor, age: Tensor, places: Tensor) -> None:
        self.keep, self.age, self.places = keep, age, places

    def rules(self, reaches: Sequence[Rule]) -> list[Rule]:
        made: dict[int, Rule] = {id(reach): Newest(reach, self.keep, self.age) for reach in reaches}
        return [made[id(reach)] for reach in reaches]

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:
        return self.places

    def read_by(self, queries: Rows) -> Rule:
        raise AssertionError("what is being written is no source")

    def mean(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written has no mean")

    def first(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written is read as a whole")

    def last(self, x: Tensor) -> Tensor:
        raise AssertionError("what is being written has not ended")


POOLINGS: dict[str, Callable[[Rows, Tensor], Tensor]] = {  # (B, T, D) -> (rows, D)
    "mean": lambda rows, x: rows.mean(x),
    "first": lambda rows, x: rows.first(x),
    "last": lambda rows, x: rows.last(x),
}

# What a model is told of its rows: which tokens are real (None: all), or how they lie.
Keep = Tensor | Padded | Packed | Hypotheses | None


def rows_of(keep: Keep) -> Padded | Packed | Hypotheses:
    return Padded(keep) if keep is None or isinstance(keep, Tensor) else keep


def pad(rows: Sequence[Any], *, fill: int = 0, left: bool = False) -> tuple[Tensor, Tensor | None]:
    """Rows of tokens as (B, T), filled up on one side, and which entries are real (None: all of them)."""
    lengths = np.array([len(row) for row in rows])
    width = lengths.max()
    table = np.full((len(rows), width), fill, dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        if len(row):
            line[-len(row) if left else 0 : None if left else len(row)] = row
    if (lengths == width).all():
        return torch.from_numpy(table), None
    places = np.arange(width)
    keep = places >= (width - lengths)[:, None] if left else places < lengths[:, None]
    return torch.from_numpy(table), torch.from_numpy(keep)


def pack(rows: Sequence[Any]) -> tuple[Tensor, Packed]:
    """Rows of tokens end to end, as (1, N), and how to tell them apart."""
    joined = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(joined[None]), Packed([len(row) for row in rows])
