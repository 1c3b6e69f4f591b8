"""The loop: draw a batch, go forward, go back, clip, move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from triform.config import Config
from triform.errors import DivergedError
from triform.scratch.batches import epoch
from triform.scratch.layers import Chance
from triform.scratch.models import Loss
from triform.scratch.optim import OPTIMIZERS, clip, rate
from triform.scratch.part import Array, Weights


class Judged(NamedTuple):
    """A batch's summed loss, the way back, and over how many predictions it was summed."""

    loss: Loss
    weight: int


class Lesson(NamedTuple):
    """What is learned from: batches without end, how many make an epoch, and what the model makes of one."""

    batches: Iterator[Array]
    steps_per_epoch: int
    judge: Callable[[Array, Chance], Judged]


def rows_again_and_again(lengths: Array, config: Config) -> tuple[Iterator[Array], int]:
    """Every row once an epoch, in an order that depends on the seed and the epoch alone."""

    def plan(number: int) -> list[Array]:
        return epoch(lengths, config.train, np.random.default_rng([config.seed, number]))

    def batches() -> Iterator[Array]:
        number = 0
        while True:
            yield from plan(number)
            number += 1

    return batches(), len(plan(0))


def windows(n_starts: int, width: int, config: Config) -> tuple[Iterator[Array], int]:
    """Starting places of windows in one long row of tokens."""

    def batches() -> Iterator[Array]:
        rng = np.random.default_rng([config.seed, 0])
        while True:
            yield rng.integers(0, n_starts, size=config.train.batch_size)

    return batches(), max(1, round((n_starts + width) / (width * config.train.batch_size)))


def learn(weights: Weights, lesson: Lesson, config: Config) -> list[float]:
    """The loss of every step, a mean over its predictions."""
    train = config.train
    n_steps = train.max_steps or max(1, math.ceil(train.epochs * lesson.steps_per_epoch))
    if train.warmup_steps < 0:
        train = with_warmup(config, n_steps).train
    optimizer = OPTIMIZERS[train.optimizer](weights, train)
    chance = np.random.Generator(np.random.SFC64([config.seed, 1]))
    losses: list[float] = []
    for step in range(1, n_steps + 1):
        weights.grad.fill(0)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told below
            (loss, back), weight = lesson.judge(next(lesson.batches), chance)
            back(1 / weight)
            norm = clip(weights.grad, train.clip_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = "the gradient" if math.isfinite(loss) else "the loss"
            raise DivergedError(f"{what} stopped being a finite number at step {step}; lower train.lr")
        optimizer.step(rate(train, step, n_steps))
        losses.append(loss / weight)
    return losses


def with_warmup(config: Config, n_steps: int) -> Config:
    from dataclasses import replace

    return replace(config, train=replace(config.train, warmup_steps=min(1_000, n_steps // 20)))
