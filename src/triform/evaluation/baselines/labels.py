"""The majority baseline, and the common part of baselines that predict labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import LabelledText
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.metrics import Metrics, accuracy, macro_f1

FloatArray = npt.NDArray[np.float64]


class LabelBaseline(ABC):
    """Base class of baselines that predict labels.

    Attributes:
        labels: The labels, sorted; the columns of predicted probabilities are in this order.
    """

    labels: Sequence[str]

    @abstractmethod
    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        """Return the probability of each label for each text."""

    def evaluate(self, test: Sequence[LabelledText]) -> Metrics:
        """Return the metrics that `classify` reports."""
        return evaluate_labels(self.labels, self.predict([row.text for row in test]), test)


class MajorityBaseline(LabelBaseline):
    """Predicts the most frequent label of the training rows, with the label frequencies as probabilities."""

    def __init__(self, labels: Sequence[str], class_prior: FloatArray) -> None:
        self.labels, self.class_prior = labels, class_prior

    @classmethod
    def fit(cls, train: Sequence[LabelledText]) -> Self:
        """Count the labels of the training rows."""
        if not train:
            raise BaselineError("there are no training rows")
        counts = Counter(row.label for row in train)
        labels = sorted(counts)
        return cls(labels, np.array([counts[label] for label in labels]) / len(train))

    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        """Return the same probabilities for each text."""
        return np.tile(self.class_prior, (len(texts), 1))


def evaluate_labels(labels: Sequence[str], probs: FloatArray, test: Sequence[LabelledText]) -> Metrics:
    """Compute the metrics that `classify` reports. Labels that do not occur in training count as errors."""
    if not test:
        raise BaselineError("there are no rows to evaluate")
    all_labels = [*labels, *sorted({row.label for row in test} - set(labels))]
    label_ids = {label: label_id for label_id, label in enumerate(all_labels)}
    probs = np.pad(probs, ((0, 0), (0, len(all_labels) - len(labels))))
    targets = np.array([label_ids[row.label] for row in test])
    confusion = np.zeros((len(all_labels), len(all_labels)), np.int64)
    np.add.at(confusion, (targets, probs.argmax(1)), 1)
    with np.errstate(divide="ignore"):  # a probability of 0 gives an infinite loss
        loss = -np.log(probs[np.arange(len(test)), targets]).mean()
    return {"loss": float(loss), "accuracy": accuracy(confusion), "f1": macro_f1(confusion), "rows": len(test)}
