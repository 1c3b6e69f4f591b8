"""Padding, and the grouping of rows into batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from triform.config import Config, TrainConfig
from triform.scratch.module import Array
from triform.text import PAD

POOL_BATCHES = 50  # batches sorted by length together: large enough for little padding, small enough to stay random


def pad(rows: Sequence[Sequence[int]], fill: int = PAD) -> tuple[Array, Array | None]:
    """Return rows as an array (B, T), and a mask that is False for padding, or None if there is no padding.

    >>> tokens, keep = pad([[5, 6, 7], [8]])
    >>> tokens.tolist(), keep.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    lengths = np.array([len(row) for row in rows])
    keep = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.full(keep.shape, fill, np.int64)
    padded[keep] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return padded, None if keep.all() else keep


def batch_by_budget(order: Array, lengths: Array, config: TrainConfig) -> list[Array]:
    """Split rows into batches of `batch_size` rows, or of at most `batch_tokens` tokens with padding."""
    if config.batch_size:
        return [order[start : start + config.batch_size] for start in range(0, len(order), config.batch_size)]
    batches, start, longest = [], 0, 0
    for index, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        if index > start and longest * (index - start + 1) > config.batch_tokens:
            batches.append(order[start:index])
            start, longest = index, length
    return [*batches, order[start:]]


def epoch_batches(lengths: Array, config: TrainConfig, rng: np.random.Generator) -> list[Array]:
    """Return batches of rows of similar length, in random order. Every row occurs once."""
    order = rng.permutation(len(lengths))
    batch_rows = config.batch_size or max(1, int(config.batch_tokens / max(1.0, lengths.mean())))
    batches: list[Array] = []
    for start in range(0, len(order), batch_rows * POOL_BATCHES):
        pool = order[start : start + batch_rows * POOL_BATCHES]
        batches += batch_by_budget(pool[np.argsort(lengths[pool], kind="stable")], lengths, config)
    return [batches[index] for index in rng.permutation(len(batches))]


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[Array]:
    """Yield batches for prediction, shortest rows first, so that there is little padding."""
    sizes = np.array(lengths, np.int64)
    order = np.argsort(sizes, kind="stable")
    return iter(batch_by_budget(order, sizes, TrainConfig(batch_tokens=max_tokens))) if len(order) else iter(())


def resolve_batch_rows(config: Config, width: int) -> Config:
    """Return the config with a batch size in rows, because all windows have the same width."""
    train = config.train
    batch_rows = train.batch_size or max(1, train.batch_tokens // width)
    return replace(config, train=replace(train, batch_size=batch_rows, batch_tokens=0))
