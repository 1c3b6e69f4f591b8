"""Samplers choose the examples of the next batch.

The order depends only on the seed and on the number of the epoch or batch. A checkpoint therefore stores one or two
integers, and a resumed run sees the same batches as an uninterrupted one.
"""

from __future__ import annotations

import sys
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Sampler(Protocol):
    """The interface of samplers: batches of indices, and a position that can be saved and restored."""

    steps_per_epoch: int

    def next_batch(self) -> Indices:
        """Return the indices of the next batch."""

    def state_dict(self) -> dict[str, int]:
        """Return the position of the sampler, for a checkpoint."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore what `state_dict` returned."""


def round_up_length(length: int, max_length: int = sys.maxsize) -> int:
    """Round a length up to 8, 16, ... 64, 80, 96, 112, 128, 160, ..., for few batch shapes with little padding."""
    multiple = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    return min(max_length, -(-length // multiple) * multiple)


class BucketSampler:
    """Sampler that draws every example once per epoch, in batches of similar length.

    Args:
        lengths: Length of each example.
        batch_size: Examples per batch. If it is 0, `batch_tokens` is used instead.
        batch_tokens: Tokens per batch, including padding. Lengths are rounded up, so that batches have few shapes.
        seed: Random seed for shuffling.
        n_versions: Encodings of every example, stored one after another. Each epoch uses the next one.
        max_length: The length that examples are padded to at most.
    """

    POOL_BATCHES = 50  # batches sorted together: large enough for little padding, small enough to stay random

    def __init__(
        self,
        lengths: Indices,
        *,
        batch_size: int = 0,
        batch_tokens: int = 0,
        seed: int,
        n_versions: int = 1,
        max_length: int = sys.maxsize,
    ) -> None:
        self.lengths, self.batch_size, self.batch_tokens, self.seed = lengths, batch_size, batch_tokens, seed
        self.n_versions = n_versions
        self.padded_lengths = np.array(
            [round_up_length(length, max_length) for length in range(int(lengths.max(initial=0)) + 1)]
        )[lengths]
        self.epoch, self.position = 0, 0
        self._batches = self._plan_epoch(0)
        self.steps_per_epoch = len(self._batches)

    def _plan_epoch(self, epoch: int) -> list[Indices]:
        rng = np.random.default_rng([self.seed, epoch])
        n_examples = len(self.lengths) // self.n_versions
        order = rng.permutation(n_examples) + n_examples * (epoch % self.n_versions)
        rows_per_batch = self.batch_size or max(1, int(self.batch_tokens / max(1.0, float(self.lengths.mean()))))
        batches: list[Indices] = []
        for start in range(0, len(order), rows_per_batch * self.POOL_BATCHES):
            pool = order[start : start + rows_per_batch * self.POOL_BATCHES]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += batch_by_budget(
                pool, self.padded_lengths[pool], batch_size=self.batch_size, batch_tokens=self.batch_tokens
            )
        return [batches[index] for index in rng.permutation(len(batches))]

    def next_batch(self) -> Indices:
        if self.position == len(self._batches):
            self.epoch, self.position = self.epoch + 1, 0
            self._batches = self._plan_epoch(self.epoch)
        self.position += 1
        return self._batches[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._batches = self._plan_epoch(self.epoch)
        if self.position > len(self._batches):
            raise ValueError(f"sampler.position is {self.position}, but an epoch has {len(self._batches)} batches")


def batch_by_budget(
    order: Indices, lengths: Indices, *, batch_size: int = 0, batch_tokens: int = 0
) -> list[Indices]:
    """Split indices into batches of `batch_size` examples, or of at most `batch_tokens` tokens with padding."""
    if batch_size:
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches, start, max_length = [], 0, 0
    for index, length in enumerate(lengths.tolist()):
        max_length = max(max_length, length)
        if index > start and max_length * (index - start + 1) > batch_tokens:
            batches.append(order[start:index])
            start, max_length = index, length
    return [*batches, order[start:]] if start < len(order) else batches


def batch_by_length(lengths: Indices, *, batch_tokens: int) -> list[Indices]:
    """Return batches for evaluation, sorted by length so that there is almost no padding."""
    order = np.argsort(lengths, kind="stable")
    return batch_by_budget(order, lengths[order], batch_tokens=batch_tokens)


class RandomWindowSampler:
    """Sampler that draws start positions of windows in one long stream of tokens, with replacement."""

    def __init__(self, n_starts: int, *, width: int, batch_size: int, seed: int) -> None:
        self.n_starts, self.batch_size, self.seed = n_starts, batch_size, seed
        self.steps_per_epoch = max(1, round((n_starts + width) / (width * batch_size)))
        self.n_batches = 0

    def next_batch(self) -> Indices:
        rng = np.random.default_rng([self.seed, self.n_batches])
        self.n_batches += 1
        return rng.integers(0, self.n_starts, size=self.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.n_batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n_batches = state["drawn"]
