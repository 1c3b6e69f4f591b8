"""Steps and epochs: how many steps some epochs have, and after which steps a run is validated."""

from __future__ import annotations

import math

from triform.config import TrainConfig


def steps_for_epochs(epochs: float, batches_per_epoch: int, grad_accumulation: int) -> int:
    """Return how many optimisation steps so many epochs take, at least one."""
    return max(1, math.ceil(epochs * batches_per_epoch / grad_accumulation))


def is_validation_step(step: int, train: TrainConfig, batches_per_epoch: int) -> bool:
    """Return whether a validation follows a step. One always follows the last step of a run."""
    if train.eval_every == "epoch":
        before, after = ((n * train.grad_accumulation) // batches_per_epoch for n in (step - 1, step))
        return before < after
    return step % train.eval_every == 0


def steps_per_validation(train: TrainConfig, batches_per_epoch: int) -> int:
    """Return how many steps apart validations are; if they are an epoch apart, rounded up."""
    if train.eval_every == "epoch":
        return steps_for_epochs(1, batches_per_epoch, train.grad_accumulation)
    return train.eval_every
