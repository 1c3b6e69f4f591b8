"""Logistic regression over sparse rows, by L-BFGS: the optimum that scikit-learn's `LogisticRegression` finds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Objective = Callable[[FloatArray], tuple[float, FloatArray]]

HISTORY_SIZE = 10  # steps that are remembered
MAX_ITERATIONS = 500
GRADIENT_TOLERANCE = (
    1e-6  # the largest slope of the mean loss that is taken for level; at 1e-5 how BLAS rounds moves the score
)


@dataclass(frozen=True)
class CooMatrix:
    """A matrix by its entries: value `values[i]` in row `rows[i]` and column `columns[i]`."""

    rows: IntArray
    columns: IntArray
    values: FloatArray
    shape: tuple[int, int]

    def matmul(self, weights: FloatArray) -> FloatArray:  # (columns, k) -> (rows, k)
        sums = (
            np.bincount(self.rows, self.values * column[self.columns], minlength=self.shape[0])
            for column in weights.T
        )
        return np.stack(list(sums), axis=1)

    def transposed_matmul(self, weights: FloatArray) -> FloatArray:  # (rows, k) -> (columns, k)
        sums = (
            np.bincount(self.columns, self.values * column[self.rows], minlength=self.shape[1])
            for column in weights.T
        )
        return np.stack(list(sums), axis=1)

    def select_rows(self, row_mask: npt.NDArray[np.bool_]) -> CooMatrix:
        entry_mask, new_row_index = row_mask[self.rows], np.cumsum(row_mask) - 1
        shape = (int(row_mask.sum()), self.shape[1])
        return CooMatrix(
            new_row_index[self.rows[entry_mask]], self.columns[entry_mask], self.values[entry_mask], shape
        )


def softmax(logits: FloatArray) -> FloatArray:
    """Shares of the labels; of two labels only the second has a score of its own."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)


def fit_logistic(
    x: CooMatrix, labels: IntArray, n_labels: int, c: float, initial_weights: FloatArray | None = None
) -> FloatArray:
    """Weights (features + 1, scores), the last row being the bias, which is not held small.

    As scikit-learn has it: the sum of the losses times `c`, plus half the squares of the weights.
    """
    n, n_logits = x.shape[0], 1 if n_labels == 2 else n_labels
    shape = (x.shape[1] + 1, n_logits)
    one_hot = np.eye(n_labels)[labels]  # (n, labels)

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(shape)
        probs = softmax(x.matmul(weights[:-1]) + weights[-1])
        logits_grad = (probs - one_hot)[:, -n_logits:] / n
        target_probs = np.maximum(probs[np.arange(n), labels], np.finfo(np.float64).tiny)
        value = -np.log(target_probs).mean() + (weights[:-1] ** 2).sum() / (2 * c * n)
        gradient = np.concatenate(
            [x.transposed_matmul(logits_grad) + weights[:-1] / (c * n), logits_grad.sum(0, keepdims=True)]
        )
        return float(value), gradient.ravel()

    initial = np.zeros(shape) if initial_weights is None else initial_weights
    return lbfgs(objective, initial.ravel()).reshape(shape)


def lbfgs(objective: Objective, point: FloatArray) -> FloatArray:
    """The lowest place of a smooth convex objective (Nocedal and Wright, chapter 7), with halved steps."""
    value, gradient = objective(point)
    history: deque[tuple[FloatArray, FloatArray, float]] = deque(
        maxlen=HISTORY_SIZE
    )  # moves, changes of slope, 1 / their product
    for _ in range(MAX_ITERATIONS):
        if np.abs(gradient).max() <= GRADIENT_TOLERANCE:
            break
        direction = -_two_loop_recursion(gradient, history)
        step_size = 1.0 if history else 1.0 / max(1.0, float(np.abs(gradient).sum()))
        directional_derivative = float(gradient @ direction)
        while (candidate := objective(point + step_size * direction))[
            0
        ] > value + 1e-4 * step_size * directional_derivative:
            step_size /= 2
            if step_size < 1e-12:  # as low as these numbers go
                return point
        point_change, gradient_change = step_size * direction, candidate[1] - gradient
        point, (value, gradient) = point + point_change, candidate
        if (curvature := float(point_change @ gradient_change)) > 0:
            history.append((point_change, gradient_change, 1 / curvature))
    return point


def _two_loop_recursion(gradient: FloatArray, history: deque[tuple[FloatArray, FloatArray, float]]) -> FloatArray:
    """The slope times an estimate of the inverse curvature, from the remembered steps."""
    direction, alphas = gradient.copy(), []
    for point_change, gradient_change, rho in reversed(history):
        alpha = rho * float(point_change @ direction)
        direction -= alpha * gradient_change
        alphas.append(alpha)
    if history:
        _, gradient_change, rho = history[-1]
        direction /= rho * float(gradient_change @ gradient_change)
    for (point_change, gradient_change, rho), alpha in zip(history, reversed(alphas), strict=True):
        direction += (alpha - rho * float(gradient_change @ direction)) * point_change
    return direction
