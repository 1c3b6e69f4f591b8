"""Adam, AdamW, gradient clipping and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from triform.config import TrainConfig
from triform.scratch.module import Array, FlatParameters

EPSILON = 1e-8
BLOCK_SIZE = 1 << 14  # elements updated at a time, so that intermediate results stay in the processor cache


def clip_gradient(grad: Array, max_norm: float) -> float:
    """Scale a gradient down in place to the norm `max_norm`, and return its norm before.

    Args:
        grad: A gradient, as one vector.
        max_norm: The largest norm; 0 means no limit.

    Returns:
        The norm before.

    >>> grad = np.array([3.0, 4.0])
    >>> clip_gradient(grad, 1.0), grad.round(3).tolist()
    (5.0, [0.6, 0.8])
    """
    norm = math.sqrt(float(grad @ grad))
    if max_norm and norm > max_norm:
        grad *= grad.dtype.type(max_norm / (norm + 1e-6))
    return norm


class Adam:
    """Adam, whose step is the running mean of the gradient over the root of the running mean of its square.

    m ← β₁ m + (1 - β₁) g and v ← β₂ v + (1 - β₂) g². Both start at zero, so after k steps they are divided by
    1 - β₁ᵏ and 1 - β₂ᵏ; then w ← w - lr · m / (√v + ε). Weight decay is part of the gradient: g + λ w.

    Args:
        weights: The weights and gradients of a model.
        config: The training settings, of which `betas` and `weight_decay` are used.
    """

    def __init__(self, weights: FlatParameters, config: TrainConfig) -> None:
        self.weights, self.weight_decay = weights, config.weight_decay
        self.beta1, self.beta2 = config.betas
        self.exp_avg, self.exp_avg_sq = np.zeros_like(weights.value), np.zeros_like(weights.value)
        self.steps = 0

    def step(self, lr: float) -> None:
        """Update all weights in place.

        Args:
            lr: The learning rate of this step.
        """
        self.steps += 1
        arrays = self.weights.value, self.weights.grad, self.exp_avg, self.exp_avg_sq
        n_decaying = self.weights.n_decaying  # matrices decay; biases and norms do not
        edges = [
            *range(0, n_decaying, BLOCK_SIZE),
            *range(n_decaying, len(self.weights.value), BLOCK_SIZE),
            len(self.weights.value),
        ]
        for start, end in pairwise(edges):
            w, g, m, v = (array[start:end] for array in arrays)
            self.apply_decay(w, g, lr, self.weight_decay if start < n_decaying else 0.0)
            self.update(w, g, m, v, lr)

    def update(self, w: Array, g: Array, m: Array, v: Array, lr: float) -> None:
        m *= self.beta1
        m += (1 - self.beta1) * g
        v *= self.beta2
        np.multiply(g, g, out=g)
        g *= 1 - self.beta2
        v += g
        denominator = np.sqrt(v, out=g)  # the gradient is no longer needed
        denominator *= 1 / math.sqrt(1 - self.beta2**self.steps)
        denominator += EPSILON
        np.divide(m, denominator, out=denominator)
        denominator *= lr / (1 - self.beta1**self.steps)
        w -= denominator

    def apply_decay(self, w: Array, g: Array, lr: float, weight_decay: float) -> None:
        if weight_decay:
            g += weight_decay * w


class AdamW(Adam):
    """Adam with decoupled weight decay: w ← (1 - lr · λ) w, independent of the gradient."""

    def apply_decay(self, w: Array, g: Array, lr: float, weight_decay: float) -> None:
        w *= 1 - lr * weight_decay


OPTIMIZERS: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}


def cosine(config: TrainConfig, progress: float, step: int) -> float:
    """Return the factor of a schedule that decays along half a cosine."""
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2


def linear(config: TrainConfig, progress: float, step: int) -> float:
    """Return the factor of a schedule that decays linearly."""
    return 1 - (1 - config.min_lr_ratio) * progress


def noam(config: TrainConfig, progress: float, step: int) -> float:
    """Return the factor of a schedule with the inverse square root of the step."""
    warmup = max(1, config.warmup_steps)
    return math.sqrt(warmup / max(step, warmup))


SCHEDULES: dict[str, Callable[[TrainConfig, float, int], float]] = {
    "constant": lambda config, progress, step: 1.0,
    "cosine": cosine,
    "linear": linear,
    "noam": noam,
}


def learning_rate(config: TrainConfig, step: int, n_steps: int) -> float:
    """Compute the learning rate of a step: a linear warm-up, then the schedule.

    Args:
        config: The training settings, of which `lr`, `warmup_steps`, `schedule` and `min_lr_ratio` are used.
        step: The step, counted from 1.
        n_steps: The number of steps of the training.

    Returns:
        The learning rate.

    >>> config = TrainConfig(lr=0.01, warmup_steps=10, schedule="linear", min_lr_ratio=0.0)
    >>> [round(learning_rate(config, step, 110), 4) for step in (1, 10, 60, 110)]
    [0.001, 0.01, 0.005, 0.0]
    """
    warmup = max(0, config.warmup_steps)
    warmup_factor = min(1.0, step / warmup) if warmup else 1.0
    progress = min(1.0, max(0.0, (step - warmup) / max(1, n_steps - warmup)))
    return config.lr * warmup_factor * SCHEDULES[config.schedule](config, progress, step)
