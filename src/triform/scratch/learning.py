"""The loop: draw a batch, go forward, go back, clip, move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from triform.config import Config
from triform.errors import DivergedError
from triform.scratch.batches import epoch
from triform.scratch.optim import OPTIMIZERS, clip, rate
from triform.scratch.part import Array, Weights


class Batch(NamedTuple):
    """What the model's `loss` is given, and over how many predictions it is summed."""

    inputs: dict[str, Array | None]
    weight: int


class Lesson(NamedTuple):
    """What is learned from: batches without end, how many make an epoch, and what is in one."""

    drawn: Iterator[Array]
    steps_per_epoch: int
    batch: Callable[[Array], Batch]


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


@np.errstate(all="ignore")  # what is not finite is told in one line
def learn(model: Any, weights: Weights, lesson: Lesson, config: Config) -> list[float]:
    """The loss of every step, a mean over its predictions."""
    n_steps = config.train.max_steps or max(1, math.ceil(config.train.epochs * lesson.steps_per_epoch))
    warmup = config.train.warmup_steps if config.train.warmup_steps >= 0 else min(1_000, n_steps // 20)
    train = replace(config.train, warmup_steps=warmup)
    optimizer = OPTIMIZERS[train.optimizer](weights, train)
    chance = np.random.Generator(np.random.SFC64([config.seed, 1]))
    losses: list[float] = []
    for step in range(1, n_steps + 1):
        inputs, weight = lesson.batch(next(lesson.drawn))
        weights.grad.fill(0)
        loss, back = model.loss(**inputs, smoothing=train.label_smoothing, chance=chance)
        back(1 / weight)
        norm = clip(weights.grad, train.clip_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = "the gradient" if math.isfinite(loss) else "the loss"
            raise DivergedError(f"{what} stopped being a finite number at step {step}; lower train.lr")
        optimizer.step(rate(train, step, n_steps))
        losses.append(loss / weight)
    loss, _ = model.loss(**inputs)  # the weights of the last step have told nothing yet
    if not (math.isfinite(loss) and np.isfinite(weights.value).all()):
        raise DivergedError(f"the last step, {n_steps}, left weights that give no finite number; lower train.lr")
    return losses
