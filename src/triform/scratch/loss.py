"""Cross entropy with label smoothing."""

from __future__ import annotations

import numpy as np

from triform.errors import ConfigError, DataError
from triform.scratch.module import Array

IGNORE_INDEX = -100  # a target that is ignored


def cross_entropy(logits: Array, targets: Array, smoothing: float) -> tuple[float, Array]:  # (N, V), (N)
    """Return the summed loss and its gradient with respect to the logits, (N, V).

    With p = softmax(s), the loss of a row is -Σ_j y_j log p_j = log Σ_k exp(s_k) - Σ_j y_j s_j, where
    y = 1 - ε + ε/V at the target and ε/V elsewhere. The derivative of log Σ_k exp(s_k) with respect to s_j is p_j,
    so the gradient is ds = p - y.

    Args:
        logits: One row of logits per prediction.
        targets: The index of the correct class of each row.
        smoothing: The probability ε that label smoothing spreads over all classes.

    Returns:
        The summed loss and its gradient, (N, V).

    Raises:
        ConfigError: `smoothing` is not between 0 and 1.
        DataError: A target is not the index of a class.

    >>> loss, gradient = cross_entropy(np.zeros((1, 4)), np.array([2]), 0.0)
    >>> round(loss, 4), gradient.tolist()
    (1.3863, [[0.25, 0.25, -0.75, 0.25]])
    """
    rows, n_classes = np.arange(len(targets)), logits.shape[-1]
    if not 0 <= smoothing <= 1:
        raise ConfigError(f"smoothing={smoothing} must be between 0 and 1")
    if targets.size and (targets.min() < 0 or targets.max() >= n_classes):
        raise DataError(f"targets must be from 0 to {n_classes - 1}, found {targets.min()} to {targets.max()}")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target_logits = shifted[rows, targets]
    mean = shifted.sum(axis=-1) / n_classes if smoothing else 0.0
    probs = np.exp(shifted, out=shifted)
    sums = probs.sum(axis=-1, keepdims=True)
    losses = np.log(sums[:, 0]) - (1 - smoothing) * target_logits - smoothing * mean
    probs /= sums
    probs -= smoothing / n_classes
    probs[rows, targets] -= 1 - smoothing
    return float(losses.sum(dtype=np.float64)), probs
