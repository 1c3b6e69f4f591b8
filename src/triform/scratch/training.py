"""The training loop: sample a batch, forward, backward, clip, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from triform.config import Config
from triform.errors import DivergedError
from triform.scratch.batches import epoch_batches
from triform.scratch.module import Array, FlatParameters
from triform.scratch.optim import OPTIMIZERS, clip_gradient, learning_rate


class TrainingBatch(NamedTuple):
    """The arguments of the model's `loss`, and the number of predictions in the sum."""

    inputs: dict[str, Array | None]
    n_predictions: int


class TrainingData(NamedTuple):
    """An endless stream of batches as row indices, the steps in an epoch, and a function that builds a batch."""

    index_batches: Iterator[Array]
    steps_per_epoch: int
    make_batch: Callable[[Array], TrainingBatch]


def epoch_sampler(lengths: Array, config: Config) -> tuple[Iterator[Array], int]:
    """Return batches with every row once per epoch, in an order that depends only on seed and epoch."""

    def plan_epoch(epoch: int) -> list[Array]:
        return epoch_batches(lengths, config.train, np.random.default_rng([config.seed, epoch]))

    def batches() -> Iterator[Array]:
        epoch = 0
        while True:
            yield from plan_epoch(epoch)
            epoch += 1

    return batches(), len(plan_epoch(0))


def window_sampler(n_starts: int, width: int, config: Config) -> tuple[Iterator[Array], int]:
    """Return batches of random start positions of windows in one long sequence of tokens."""

    def batches() -> Iterator[Array]:
        rng = np.random.default_rng([config.seed, 0])
        while True:
            yield rng.integers(0, n_starts, size=config.train.batch_size)

    return batches(), max(1, round((n_starts + width) / (width * config.train.batch_size)))


@np.errstate(all="ignore")  # overflow is reported as a DivergedError
def train_model(model: Any, weights: FlatParameters, data: TrainingData, config: Config) -> list[float]:
    """Train a model in place.

    Returns:
        The mean loss per prediction of every step.

    Raises:
        DivergedError: The loss, the gradient or the weights are no longer finite.
    """
    n_steps = config.train.max_steps or max(1, math.ceil(config.train.epochs * data.steps_per_epoch))
    warmup = config.train.warmup_steps if config.train.warmup_steps >= 0 else min(1_000, n_steps // 20)
    train_config = replace(config.train, warmup_steps=warmup)
    optimizer = OPTIMIZERS[train_config.optimizer](weights, train_config)
    rng = np.random.Generator(np.random.SFC64([config.seed, 1]))
    losses: list[float] = []
    for step in range(1, n_steps + 1):
        inputs, n_predictions = data.make_batch(next(data.index_batches))
        weights.grad.fill(0)
        loss, backward = model.loss(**inputs, smoothing=train_config.label_smoothing, rng=rng)
        backward(1 / n_predictions)
        grad_norm = clip_gradient(weights.grad, train_config.clip_norm)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            quantity = "the gradient" if math.isfinite(loss) else "the loss"
            raise DivergedError(f"{quantity} is not finite at step {step}; lower train.lr")
        optimizer.step(learning_rate(train_config, step, n_steps))
        losses.append(loss / n_predictions)
    loss, _ = model.loss(**inputs)  # to check the weights after the last step
    if not (math.isfinite(loss) and np.isfinite(weights.value).all()):
        raise DivergedError(f"the loss is not finite after the last step, {n_steps}; lower train.lr")
    return losses
