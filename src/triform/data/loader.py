"""Which examples come next. A sampler's position is two numbers, so a checkpoint can hold it.

Orders are computed from (seed, epoch or draw) alone: nothing random is carried along, and a resumed run sees
the same batches as an unbroken one.
"""

from __future__ import annotations

import sys
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Sampler(Protocol):
    steps_per_epoch: int

    def next(self) -> Indices:
        """The examples of the next batch."""

    def state(self) -> dict[str, int]:
        """Where it stands."""

    def restore(self, state: dict[str, int]) -> None:
        """Stand there again."""


def rung(length: int, most: int = sys.maxsize) -> int:
    """The length rounded up to 8, 16, ... 64, 80, 96, 112, 128, 160, ...: few of them, and little to fill up."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    return min(most, -(-length // step) * step)


class Bucketed:
    """Every example once an epoch, in batches of like length, cut by rows or by a token budget.

    A budget is of tokens with their padding, and lengths are rounded up to a rung: a device that records its steps
    then meets one shape a rung.
    """

    POOL = 50  # batches sorted together: large enough for little padding, small enough to stay random

    def __init__(
        self,
        lengths: Indices,
        *,
        batch_size: int = 0,
        batch_tokens: int = 0,
        seed: int,
        versions: int = 1,
        longest: int = sys.maxsize,
    ) -> None:
        """No example is wider than `longest`. With several versions of all of them, epochs take these in turn."""
        self.lengths, self.batch_size, self.batch_tokens, self.seed = lengths, batch_size, batch_tokens, seed
        self.versions = versions
        self.widths = np.array([rung(n, longest) for n in range(int(lengths.max(initial=0)) + 1)])[lengths]
        self.epoch, self.position = 0, 0
        self._plan = self._order(0)
        self.steps_per_epoch = len(self._plan)

    def _order(self, epoch: int) -> list[Indices]:
        rng = np.random.default_rng([self.seed, epoch])
        n = len(self.lengths) // self.versions
        order = rng.permutation(n) + n * (epoch % self.versions)
        rows = self.batch_size or max(1, int(self.batch_tokens / max(1.0, float(self.lengths.mean()))))
        batches: list[Indices] = []
        for start in range(0, len(order), rows * self.POOL):
            pool = order[start : start + rows * self.POOL]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += cut(pool, self.widths[pool], batch_size=self.batch_size, batch_tokens=self.batch_tokens)
        return [batches[place] for place in rng.permutation(len(batches))]

    def next(self) -> Indices:
        if self.position == len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._order(self.epoch)
        self.position += 1
        return self._plan[self.position - 1]

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._plan = self._order(self.epoch)
        if self.position > len(self._plan):
            raise ValueError(f"sampler.position is {self.position}, and an epoch has {len(self._plan)} batches")


def cut(order: Indices, lengths: Indices, *, batch_size: int = 0, batch_tokens: int = 0) -> list[Indices]:
    """Cut an order into batches of `batch_size` rows, or of at most `batch_tokens` with their padding."""
    if batch_size:
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches, start, widest = [], 0, 0
    for place, length in enumerate(lengths.tolist()):
        widest = max(widest, length)
        if place > start and widest * (place - start + 1) > batch_tokens:
            batches.append(order[start:place])
            start, widest = place, length
    return [*batches, order[start:]] if start < len(order) else batches


def in_order_of_length(lengths: Indices, *, batch_tokens: int) -> list[Indices]:
    """Batches for evaluation: shortest first, so that almost nothing is padded."""
    order = np.argsort(lengths, kind="stable")
    return cut(order, lengths[order], batch_tokens=batch_tokens)


class RandomWindows:
    """Starting places of windows in one long stream of tokens, drawn with replacement."""

    def __init__(self, n_starts: int, *, width: int, batch_size: int, seed: int) -> None:
        self.n_starts, self.batch_size, self.seed = n_starts, batch_size, seed
        self.steps_per_epoch = max(1, round((n_starts + width) / (width * batch_size)))
        self.drawn = 0

    def next(self) -> Indices:
        rng = np.random.default_rng([self.seed, self.drawn])
        self.drawn += 1
        return rng.integers(0, self.n_starts, size=self.batch_size)

    def state(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]
