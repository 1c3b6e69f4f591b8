"""One step at a time: scores for the next token, over rows that may leave, join and fork into hypotheses.

`Cached` keeps keys and values and reads as much as there is; `Rereading` reads everything again at every step:
slower, the same answer, and what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from triform.decode.forms import Form, Read, Rereads, Tokens
from triform.nn.cache import Cache
from triform.nn.rows import Hypotheses


class Steps(Protocol):
    """The least that a stepper does."""

    def start(self) -> Tensor:
        """Scores (B, V) for the first new token."""

    def step(self, tokens: Tensor) -> Tensor:
        """Take one token a row (B); scores (B, V) for the next."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be repeated."""


class Stepper(Protocol):
    """A stepper that can do all that searches ask of it."""

    def start(self) -> Tensor:
        """Scores (B, V) for the first new token."""

    def fork(self, size: int) -> None:
        """From here on every row has so many hypotheses, and so has every row that joins."""

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Take a token each, (B) or (B, size); scores for the next. Hypotheses go on from these `parents`."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order, each with all its hypotheses; a row may be repeated."""

    def join(self, rows: Sequence[Tokens]) -> Tensor:
        """Rows that come after those that are there; scores (N, V) for their first new token."""


class Rereading:
    """No cache: each step reads all texts from the start. A text that fills the context goes on from its half."""

    def __init__(self, form: Rereads, rows: Sequence[Tokens]) -> None:
        self.form, self.rows = form, list(rows)
        self.texts = [form.begin(row) for row in rows]

    def start(self) -> Tensor:
        return self.form.read_again(self.rows, self.texts)

    def step(self, tokens: Tensor) -> Tensor:
        pairs = zip(self.texts, tokens.tolist(), strict=True)
        self.texts = [newer(text, token, self.form.max_len) for text, token in pairs]
        return self.start()

    def select(self, rows: Tensor) -> None:
        places = rows.tolist()
        self.rows, self.texts = [self.rows[place] for place in places], [self.texts[place] for place in places]


def newer(text: list[int], token: int, max_len: int) -> list[int]:
    """The text with one token more; one that the model can read no longer goes on from its newer half."""
    return [*(text[-(max_len // 2) :] if len(text) == max_len else text), token]


class Cached:
    """Keys and values of what was read are kept. All rows share one clock: each writes its newest at the end.

    A row that joins is laid so that it ends there too, and the hypotheses of a row lie side by side: none is ever
    copied, `keep` says whose past a key belongs to.
    """

    cache: Cache
    lengths: list[int]  # tokens of each row's text
    source_keep: Tensor | None  # (B, S)
    keep: Tensor | None  # (B, size, S): the keys of each hypothesis; None: all, and no row has more than one
    times: Tensor  # (S): when each key was written, where there is a `keep`

    def __init__(self, form: Form, rows: Sequence[Tokens]) -> None:
        self.form, self.rows, self.size = form, rows, 1
        self.texts: list[list[list[int]]] = []  # (B, size), where the context can be filled

    def start(self) -> Tensor:
        return self._adopt(self.rows)

    def _adopt(self, rows: Sequence[Tokens]) -> Tensor:
        """Begin with these rows, whatever was before."""
        read = self.form.read(rows)
        self.cache, self.lengths, self.source_keep = read.cache, read.lengths, read.source_keep
        self.texts = self._begun(rows)
        self.keep = None if read.keep is None else read.keep[:, None]
        self.times = torch.arange(self.cache.length, device=read.scores.device)
        self.fork(self.size)
        return read.scores

    def _begun(self, rows: Sequence[Tokens]) -> list[list[list[int]]]:
        return [[self.form.begin(row)] * self.size for row in rows] if self.form.refills else []

    def fork(self, size: int) -> None:
        self.size = size
        self.texts = [[texts[0]] * size for texts in self.texts]
        if size > 1:
            self.keep = self._keep()[:, :1].expand(-1, size, -1)

    def _keep(self) -> Tensor:
        if self.keep is None:
            self.times = torch.arange(self.cache.length, device=self.times.device)
            self.keep = self.times.new_ones((len(self.lengths), self.size, len(self.times)), dtype=torch.bool)
        return self.keep

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        grid = tokens.view(len(self.lengths), self.size)
        full = [row for row, length in enumerate(self.lengths) if self.form.refills and length == self.form.max_len]
        self._note(grid, parents)
        if full and (self.size > 1 or len(full) == len(self.lengths)):
            return self._from_texts().view(*tokens.shape, -1)
        scores = self.form.next(grid, self._newest(parents), self.cache, self.source_keep)  # (B, size, V)
        self.lengths = [length + 1 for length in self.lengths]
        if full:
            read = self.form.read([self.texts[row][0] for row in full])
            scores[full, 0] = read.scores
            for row, length in zip(full, read.lengths, strict=True):
                self.lengths[row] = length
            self._lay(read, full)
        return scores.view(*tokens.shape, -1)

    def _note(self, grid: Tensor, parents: Tensor | None) -> None:
        """Write the tokens down, where the texts may have to be read again."""
        if not self.form.refills:
            return
        origins = [range(self.size)] * len(grid) if parents is None else parents.tolist()
        self.texts = [
            [newer(texts[one], token, self.form.max_len) for one, token in zip(origin, row, strict=True)]
            for texts, origin, row in zip(self.texts, origins, grid.tolist(), strict=True)
        ]

    def _newest(self, parents: Tensor | None) -> Hypotheses | None:
        """The new tokens and what they may read: the past of their parents, and themselves."""
        if self.keep is None:
            return None
        if parents is not None:
            self.keep = self.keep.gather(1, parents[:, :, None].expand(self.keep.shape))
        own = torch.eye(self.size, dtype=torch.bool, device=self.keep.device).expand(len(self.keep), -1, -1)
        self.keep = torch.cat([self.keep, own], dim=2)
        self.times = torch.cat([self.times, (self.times[-1] + 1).expand(self.size)])
        # a full row is read again: any place will do
        standing = [[min(length, self.form.max_len - 1)] for length in self.lengths]
        places = torch.tensor(standing, device=self.keep.device)
        return Hypotheses(self.keep, self.times[-1] - self.times, places.expand(-1, self.size))

    def _from_texts(self) -> Tensor:
        """Everything anew; hypotheses of one row have parted, so each is read by itself. (B · size, V)"""
        texts, size = self.texts, self.size
        self.size = 1
        scores = self._adopt([text for row in texts for text in row])
        keep = self._keep().view(len(texts), size, -1)
        for past, _ in self.cache.parts:
            past.interleave(size)
        own = torch.eye(size, dtype=torch.bool, device=keep.device)
        self.keep = None if size == 1 and keep.all() else (keep[..., None] & own[:, None]).flatten(2)
        self.times = self.times.repeat_interleave(size)
        self.size, self.texts, self.lengths = size, texts, self.lengths[::size]
        return scores

    def select(self, rows: Tensor) -> None:
        places = rows.tolist()
        if places == list(range(len(self.lengths))):
            return
        self.cache.select(rows)
        self.lengths = [self.lengths[place] for place in places]
        self.texts = [self.texts[place] for place in places] if self.texts else []
        self.keep = None if self.keep is None else self.keep[rows]
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]

    def join(self, rows: Sequence[Tokens]) -> Tensor:
        if not self.lengths:
            return self._adopt(rows)
        read = self.form.read(rows)
        before = len(self._keep())
        self.source_keep = self.cache.join_sources(read.cache, self.source_keep, read.source_keep)
        self.lengths = self.lengths + read.lengths
        self.texts = self.texts + self._begun(rows)
        self._lay(read, list(range(before, before + len(rows))))
        return read.scores

    def _lay(self, read: Read, rows: list[int]) -> None:
        """Put what was read at the end of these rows' keys; what no row needs any more is left behind."""
        keep, width = self._keep(), read.cache.length
        more, device = len(self.lengths) - len(keep), keep.device
        earlier = keep.any(dim=1).any(dim=0).nonzero()
        first = min(int(self.times[earlier[0, 0]]), int(self.times[-1]) - width + 1)
        front = int(self.times[0]) - first
        if front < 0:
            front = -int(torch.searchsorted(self.times, first))
        for past, _ in self.cache.parts:
            past.extend(rows=more, front=front)
        self.times = torch.cat(
            [torch.arange(first, first + max(front, 0), device=device), self.times[max(-front, 0) :]]
        )
        self.keep = keep.new_zeros(len(keep) + more, self.size, len(self.times))
        self.keep[: len(keep), :, max(front, 0) :] = keep[:, :, max(-front, 0) :]
        which = torch.tensor(rows, device=device)
        places = torch.searchsorted(self.times, torch.arange(width, device=device) + (self.times[-1] - width + 1))
        for (past, _), (new, _) in zip(self.cache.parts, read.cache.parts, strict=True):
            past.write(which, places, new.kept())
        self.keep[which] = False
        real = read.keep if read.keep is not None else keep.new_ones(len(rows), width)
        for one in range(self.size):
            self.keep[which[:, None], one, places] = real
