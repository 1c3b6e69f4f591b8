"""Logistic regression over sparse rows, by L-BFGS: the optimum that scikit-learn's `LogisticRegression` finds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Objective = Callable[[Floats], tuple[float, Floats]]

MEMORY = 10  # steps that are remembered
MOST_STEPS = 500
CLOSE = 1e-6  # the largest slope of the mean loss that is taken for level; at 1e-5 how BLAS rounds moves the score


@dataclass(frozen=True)
class Sparse:
    """A matrix by its entries: value `values[i]` in row `rows[i]` and column `columns[i]`."""

    rows: Numbers
    columns: Numbers
    values: Floats
    shape: tuple[int, int]

    def times(self, weights: Floats) -> Floats:  # (columns, k) -> (rows, k)
        sums = (
            np.bincount(self.rows, self.values * each[self.columns], minlength=self.shape[0]) for each in weights.T
        )
        return np.stack(list(sums), axis=1)

    def transposed_times(self, weights: Floats) -> Floats:  # (rows, k) -> (columns, k)
        sums = (
            np.bincount(self.columns, self.values * each[self.rows], minlength=self.shape[1]) for each in weights.T
        )
        return np.stack(list(sums), axis=1)

    def some_rows(self, chosen: npt.NDArray[np.bool_]) -> Sparse:
        kept, number = chosen[self.rows], np.cumsum(chosen) - 1
        shape = (int(chosen.sum()), self.shape[1])
        return Sparse(number[self.rows[kept]], self.columns[kept], self.values[kept], shape)


def softmax(scores: Floats) -> Floats:
    """Shares of the labels; of two labels only the second has a score of its own."""
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def fit_logistic(x: Sparse, labels: Numbers, n_labels: int, c: float, start: Floats | None = None) -> Floats:
    """Weights (features + 1, scores), the last row being the bias, which is not held small.

    As scikit-learn has it: the sum of the losses times `c`, plus half the squares of the weights.
    """
    n, k = x.shape[0], 1 if n_labels == 2 else n_labels
    shape = (x.shape[1] + 1, k)
    truth = np.eye(n_labels)[labels]  # (n, labels)

    def objective(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(shape)
        shares = softmax(x.times(weights[:-1]) + weights[-1])
        wrong = (shares - truth)[:, -k:] / n
        own = np.maximum(shares[np.arange(n), labels], np.finfo(np.float64).tiny)
        value = -np.log(own).mean() + (weights[:-1] ** 2).sum() / (2 * c * n)
        slope = np.concatenate([x.transposed_times(wrong) + weights[:-1] / (c * n), wrong.sum(0, keepdims=True)])
        return float(value), slope.ravel()

    first = np.zeros(shape) if start is None else start
    return lbfgs(objective, first.ravel()).reshape(shape)


def lbfgs(objective: Objective, place: Floats) -> Floats:
    """The lowest place of a smooth convex objective (Nocedal and Wright, chapter 7), with halved steps."""
    value, slope = objective(place)
    past: deque[tuple[Floats, Floats, float]] = deque(maxlen=MEMORY)  # moves, changes of slope, 1 / their product
    for _ in range(MOST_STEPS):
        if np.abs(slope).max() <= CLOSE:
            break
        way = -_straightened(slope, past)
        size = 1.0 if past else 1.0 / max(1.0, float(np.abs(slope).sum()))
        descent = float(slope @ way)
        while (found := objective(place + size * way))[0] > value + 1e-4 * size * descent:
            size /= 2
            if size < 1e-12:  # as low as these numbers go
                return place
        move, change = size * way, found[1] - slope
        place, (value, slope) = place + move, found
        if (product := float(move @ change)) > 0:
            past.append((move, change, 1 / product))
    return place


def _straightened(slope: Floats, past: deque[tuple[Floats, Floats, float]]) -> Floats:
    """The slope times an estimate of the inverse curvature, from the remembered steps."""
    way, shares = slope.copy(), []
    for move, change, inverse in reversed(past):
        share = inverse * float(move @ way)
        way -= share * change
        shares.append(share)
    if past:
        _, change, inverse = past[-1]
        way /= inverse * float(change @ change)
    for (move, change, inverse), share in zip(past, reversed(shares), strict=True):
        way += (share - inverse * float(change @ way)) * move
    return way
