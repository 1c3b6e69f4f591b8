"""A decoding step that is the same every time, so that a GPU can replay it as one graph.

There is room for a fixed number of rows, each with a fixed number of hypotheses and of keys. A step chooses tokens
from the scores, writes them down, and makes the next scores; whatever changes from step to step, clock and
positions included, is a tensor on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from triform.config import DecodeConfig
from triform.decode.beam import NEVER, Beams
from triform.decode.choose import drawn
from triform.decode.forms import Form, Read
from triform.nn.cache import Rings
from triform.nn.graph import record
from triform.nn.rows import Hypotheses

log = logging.getLogger("triform")
STEPS = 16  # that are replayed before the host looks at what was written


class Pick(Protocol):
    """How hypotheses go on: scores (B, size, V) -> tokens and parents (B, size); all on the device."""

    def __call__(self, scores: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]: ...


class Best:
    def __init__(self, banned: Sequence[int], device: torch.device) -> None:
        self.banned = torch.tensor(banned, dtype=torch.long, device=device)

    def __call__(self, scores: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        return scores.index_fill(-1, self.banned, NEVER).argmax(dim=-1), None


class Draw(Best):
    """Random numbers are drawn beforehand, a few steps at a time, from each row's own generator."""

    def __init__(self, banned: Sequence[int], device: torch.device, config: DecodeConfig, n_rows: int) -> None:
        super().__init__(banned, device)
        self.config = config
        self.points = torch.zeros(STEPS, n_rows, dtype=torch.float64, device=device)

    def __call__(self, scores: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        allowed = scores[:, 0].index_fill(-1, self.banned, NEVER)
        points = self.points.index_select(0, step).T  # (B, 1)
        return drawn(allowed, points, self.config)[:, None], None


class Lead:
    """Beam search."""

    def __init__(self, beams: Beams) -> None:
        self.beams = beams

    def __call__(self, scores: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.beams.advance(scores)


class Shape(NamedTuple):
    """How much there is room for."""

    rows: int
    size: int  # hypotheses of a row
    columns: int  # tokens of a text that are remembered
    source: int  # tokens of a source


class Slots:
    """The rows that are being written, each in a slot of its own, and the step that all of them take."""

    def __init__(self, form: Form, pick: Pick, shape: Shape, read: Read) -> None:
        """`read` shows what keys, values and scores look like."""
        self.pick, self.shape = pick, shape
        rows, size, columns, width = shape
        like, scores = read.cache.parts[0][0].kept()[0], read.scores
        layers, heads, depth = len(read.cache.parts), like.shape[1], like.shape[3]
        device = scores.device
        self.room = like.new_zeros(layers, 2, rows, heads, columns * size, depth)
        self.source = like.new_zeros(layers, 2, rows, heads, width, depth) if width else None
        self.source_keep = torch.ones(rows, width, dtype=torch.bool, device=device) if width else None
        self.keep = torch.zeros(rows, size, columns * size, dtype=torch.bool, device=device)
        self.scores = scores.new_zeros(rows, size, scores.shape[-1])
        self.now = torch.zeros(1, dtype=torch.long, device=device)  # the newest column
        self.step = torch.zeros(1, dtype=torch.long, device=device)  # since the host last looked
        self.position = torch.zeros(rows, 1, dtype=torch.long, device=device)  # of the next token in its text
        self.places = torch.arange(size, device=device)  # of the newest keys
        self.one_each = torch.eye(size, dtype=torch.bool, device=device)
        self.column = torch.arange(columns, device=device).repeat_interleave(size)
        self.tokens = torch.zeros(STEPS, rows, size, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.cache = Rings(self.room, self.source, self.places)
        self.graph = self._captured(form) if _records(device) else None

    def _take(self, form: Form) -> None:
        """One step. Nothing here waits for the device, or depends on a number that the host knows."""
        rows, size, columns, _ = self.shape
        tokens, parents = self.pick(self.scores, self.step)
        self.tokens.index_copy_(0, self.step, tokens[None])
        if parents is not None:
            self.parents.index_copy_(0, self.step, parents[None])
            self.keep.copy_(self.keep.gather(1, parents[:, :, None].expand(self.keep.shape)))
        self.now.add_(1).remainder_(columns)
        torch.add(self.now * size, torch.arange(size, device=self.now.device), out=self.places)
        self.keep.index_copy_(2, self.places, self.one_each.expand(rows, size, size))
        age = (self.now - self.column).remainder(columns)
        # a row that is done goes on until the host looks: its place in the text must still be one
        standing = self.position.clamp(max=form.max_len - 1).expand(rows, size)
        newest = Hypotheses(self.keep, age, standing)
        self.scores.copy_(form.next(tokens, newest, self.cache, self.source_keep))
        self.step.add_(1)
        self.position.add_(1)

    def _captured(self, form: Form) -> torch.cuda.CUDAGraph | None:
        """The step as a graph, recorded while nobody is in the slots; None where that cannot be done."""
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._take(form)
            torch.cuda.current_stream().wait_stream(side)
            return record(lambda: self._take(form))
        except RuntimeError as error:
            torch.cuda.synchronize()
            log.warning("decoding step by step, since a graph could not be recorded: %s", str(error).split("\n")[0])
            return None

    def run(self, form: Form, n: int) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Take n steps (at most STEPS); the tokens and parents of each: (n, B, size)."""
        self.step.zero_()  # here and not after: who was interrupted may have left it anywhere
        for _ in range(n):
            if self.graph is None:
                self._take(form)
            else:
                self.graph.replay()
        parents = self.parents[:n].tolist() if self.shape.size > 1 else []
        return self.tokens[:n].tolist(), parents

    def admit(self, slots: Sequence[int], read: Ahead, among: Sequence[int], *, apart: bool = False) -> None:
        """Put rows that were read into slots. `apart`: each hypothesis was read by itself, a row's one by one."""
        size, columns = self.shape.size, self.shape.columns
        into, of = (torch.tensor(each, device=self.now.device) for each in (slots, among))
        width = read.past.shape[4]
        steps = torch.arange(1 - width, 1, device=self.now.device)
        places = (self.now + steps).remainder(columns) * size  # (P)
        self.keep[into] = False
        for one in range(size if apart else 1):
            which = of[one :: size if apart else 1]
            new = read.past[:, :, which].permute(2, 4, 0, 1, 3, 5)  # (N, P, layers, 2, G, Dh)
            self.room[:, :, into[:, None], :, places + one] = new
            whose = torch.arange(one, one + 1) if apart else torch.arange(size)
            for reader in whose.tolist():
                self.keep[into[:, None], reader, places + one] = read.keep[which]
        scores = read.scores[of]
        self.scores[into] = (
            scores.view(-1, *self.scores.shape[1:]) if apart else scores[:, None].expand(-1, size, -1)
        )
        self.position[into] = read.lengths[of[:: size if apart else 1], None]
        if self.source is not None and self.source_keep is not None and read.source is not None:
            wide = read.source.shape[4]
            self.source[:, :, into, :, :wide] = read.source[:, :, of]
            self.source_keep[into] = False
            self.source_keep[into, :wide] = read.source_keep[of]


class Ahead:
    """Rows that were read before there was a slot for them; all layers in one tensor (layers, 2, N, G, P, Dh)."""

    source: Tensor | None = None

    def __init__(self, read: Read) -> None:
        self.read, self.scores = read, read.scores
        device, n = self.scores.device, len(self.scores)
        self.past = torch.stack([torch.stack(past.kept()) for past, _ in read.cache.parts])
        self.keep = torch.ones(n, self.past.shape[4], dtype=torch.bool, device=device)
        self.keep = self.keep if read.keep is None else read.keep
        self.lengths = torch.tensor(read.lengths, device=device)
        sources = [source.kept for _, source in read.cache.parts if source.kept is not None]
        if sources:
            self.source = torch.stack([torch.stack(kept) for kept in sources])
            self.source_keep = torch.ones(n, self.source.shape[4], dtype=torch.bool, device=device)
            self.source_keep = self.source_keep if read.source_keep is None else read.source_keep


def _records(device: torch.device) -> bool:
    """Whether steps there can be recorded and replayed."""
    return device.type == "cuda"
