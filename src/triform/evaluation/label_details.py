"""Details of an evaluation of a classifier: metrics of each label, the confusion matrix and confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triform.evaluation.metrics import Labels

MAX_CONFUSED_PAIRS = 20
PROBABILITY_DIGITS = 6  # for the order of mistakes: smaller differences are rounding, which depends on the machine


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """The metrics of one label. As in scikit-learn, precision is 0 if the label was never predicted."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # rows with this label


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """The number of rows with one label for which another label was predicted."""

    expected: str
    predicted: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A text with a wrong prediction: its line in the file, its label, and the probabilities of both labels."""

    line: int
    text: str
    expected: str
    predicted: str
    probability: float  # of the predicted label
    expected_probability: float


@dataclass(frozen=True, kw_only=True)
class LabelDetails:
    """Details of an evaluation of a classifier.

    Attributes:
        rows: The number of rows.
        n_labels: The number of labels.
        labels: All labels.
        confusion: Entry (i, j) is the number of rows of label i that were predicted as label j.
        classes: The metrics of each label that occurs, as a label or as a prediction.
        macro: The means of precision, recall and F1 over these labels.
        confused_pairs: The pairs of labels that were confused most often, the most frequent first.
        n_mistakes: The number of rows with a wrong prediction.
        mistakes: Those with the highest probability of the wrong label, the highest first.
    """

    rows: int
    n_labels: int
    labels: list[str]
    confusion: list[list[int]]
    classes: list[ClassMetrics]
    macro: dict[str, float]
    confused_pairs: list[ConfusedPair]
    n_mistakes: int
    mistakes: list[Mistake]


class ScoredMistake(NamedTuple):
    """A wrong prediction before its text is known. Labels and the row are numbers."""

    row: int
    expected: int
    predicted: int
    probability: float
    expected_probability: float

    @property
    def order(self) -> tuple[float, int]:
        """The most confident mistakes come first, and equally confident ones in the order of the rows."""
        return -round(self.probability, PROBABILITY_DIGITS), self.row


def select_mistakes(mistakes: Iterable[ScoredMistake], n: int) -> list[ScoredMistake]:
    """Return the `n` most confident mistakes, the most confident first."""
    return heapq.nsmallest(n, mistakes, key=lambda mistake: mistake.order)


@dataclass
class MistakeCollector:
    """Keeps the most confident mistakes of an evaluation, batch by batch."""

    n: int
    mistakes: list[ScoredMistake] = field(default_factory=list)

    def add(self, rows: Labels, labels: Labels, predicted: Labels, probs: npt.NDArray[np.float32]) -> None:
        """Add a batch.

        Args:
            rows: The number of each row in the data.
            labels: The expected labels.
            predicted: The predicted labels.
            probs: The probabilities of all labels: (rows, labels).
        """
        (wrong,) = np.nonzero(labels != predicted)
        new = [
            ScoredMistake(int(rows[i]), int(y), int(p), float(probs[i, p]), float(probs[i, y]))
            for i, y, p in zip(wrong, labels[wrong], predicted[wrong], strict=True)
        ]
        self.mistakes = select_mistakes([*self.mistakes, *new], self.n)


def class_metrics(confusion: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:  # (labels, labels) -> (labels, 3)
    """Return precision, recall and F1 of each label. A ratio without a denominator is 0."""
    hits = np.diag(confusion)
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    numerators, denominators = np.stack([hits, hits, 2 * hits]), np.stack([predicted, support, predicted + support])
    ratios: npt.NDArray[np.float64] = (numerators / np.maximum(1, denominators)).T
    return ratios


def build_label_details(
    labels: Sequence[str], confusion: npt.NDArray[np.int64], mistakes: Sequence[Mistake]
) -> LabelDetails:
    """Return the details of an evaluation from its confusion matrix and its most confident mistakes."""
    ratios, support = class_metrics(confusion), confusion.sum(axis=1)
    (present,) = np.nonzero(support + confusion.sum(axis=0))
    means = ratios[present].mean(axis=0) if len(present) else np.zeros(3)
    errors = confusion - np.diag(np.diag(confusion))
    expected, predicted = np.nonzero(errors)
    columns = (-errors[expected, predicted]).tolist(), expected.tolist(), predicted.tolist()
    pairs = sorted(zip(*columns, strict=True))[:MAX_CONFUSED_PAIRS]
    return LabelDetails(
        rows=int(confusion.sum()),
        n_labels=len(labels),
        labels=list(labels),
        confusion=confusion.tolist(),
        classes=[
            ClassMetrics(
                label=labels[i],
                precision=float(ratios[i, 0]),
                recall=float(ratios[i, 1]),
                f1=float(ratios[i, 2]),
                support=int(support[i]),
            )
            for i in present.tolist()
        ],
        macro=dict(zip(("precision", "recall", "f1"), map(float, means), strict=True)),
        confused_pairs=[
            ConfusedPair(expected=labels[i], predicted=labels[j], rows=-negative) for negative, i, j in pairs
        ],
        n_mistakes=int(errors.sum()),
        mistakes=list(mistakes),
    )
