"""Rows of unequal length as arrays, and which rows make a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from triform.config import TrainConfig
from triform.scratch.part import Array
from triform.text import PAD

POOL = 50  # batches sorted by length together: large enough for little padding, small enough to stay random


def pad(rows: Sequence[Sequence[int]], fill: int = PAD) -> tuple[Array, Array | None]:
    """Rows as (B, T), and which entries are real (None: all of them)."""
    lengths = np.array([len(row) for row in rows])
    keep = np.arange(lengths.max(initial=0)) < lengths[:, None]
    table = np.full(keep.shape, fill, np.int64)
    table[keep] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return table, None if keep.all() else keep


def cut(order: Array, lengths: Array, train: TrainConfig) -> list[Array]:
    """Batches of `batch_size` rows, or of at most `batch_tokens` with their padding."""
    if train.batch_size:
        return [order[start : start + train.batch_size] for start in range(0, len(order), train.batch_size)]
    batches, start, widest = [], 0, 0
    for place, length in enumerate(lengths[order].tolist()):
        widest = max(widest, length)
        if place > start and widest * (place - start + 1) > train.batch_tokens:
            batches.append(order[start:place])
            start, widest = place, length
    return [*batches, order[start:]]


def epoch(lengths: Array, train: TrainConfig, rng: np.random.Generator) -> list[Array]:
    """Every row once, in batches of like length, in random order."""
    order = rng.permutation(len(lengths))
    rows = train.batch_size or max(1, int(train.batch_tokens / max(1.0, lengths.mean())))
    batches: list[Array] = []
    for start in range(0, len(order), rows * POOL):
        pool = order[start : start + rows * POOL]
        batches += cut(pool[np.argsort(lengths[pool], kind="stable")], lengths, train)
    return [batches[place] for place in rng.permutation(len(batches))]


def by_length(lengths: Sequence[int], most: int) -> Iterator[Array]:
    """Batches for reading only: shortest first, so that almost nothing is padded."""
    sizes = np.array(lengths, np.int64)
    order = np.argsort(sizes, kind="stable")
    return iter(cut(order, sizes, TrainConfig(batch_tokens=most))) if len(order) else iter(())
