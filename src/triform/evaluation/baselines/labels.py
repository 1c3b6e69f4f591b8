"""The majority baseline, and the metrics of baselines that predict labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import LabelledText
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.metrics import Metrics, accuracy, macro_f1

FloatArray = npt.NDArray[np.float64]


class MajorityBaseline:
    """Predicts the most frequent label of the training rows, with the label frequencies as probabilities."""

    def __init__(self, labels: Sequence[str], class_prior: FloatArray) -> None:
        self.labels, self.class_prior = labels, class_prior

    @classmethod
    def fit(cls, train: Sequence[LabelledText]) -> Self:
        """Count the labels of the training rows."""
        if not train:
            raise BaselineError("no rows to learn from")
        counts = Counter(row.label for row in train)
        labels = sorted(counts)
        return cls(labels, np.array([counts[label] for label in labels]) / len(train))

    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        """Return the same probabilities for each text."""
        return np.tile(self.class_prior, (len(texts), 1))

    def evaluate(self, test: Sequence[LabelledText]) -> Metrics:
        """Return the metrics that `classify` reports."""
        return evaluate_labels(self.labels, self.predict([row.text for row in test]), test)


def evaluate_labels(labels: Sequence[str], probs: FloatArray, test: Sequence[LabelledText]) -> Metrics:
    """The metrics that `classify` reports; labels that do not occur in training are always wrong."""
    if not test:
        raise BaselineError("no rows to evaluate on")
    all_labels = [*labels, *sorted({row.label for row in test} - set(labels))]
    label_ids = {label: label_id for label_id, label in enumerate(all_labels)}
    probs = np.pad(probs, ((0, 0), (0, len(all_labels) - len(labels))))
    targets = np.array([label_ids[row.label] for row in test])
    confusion = np.zeros((len(all_labels), len(all_labels)), np.int64)
    np.add.at(confusion, (targets, probs.argmax(1)), 1)
    with np.errstate(divide="ignore"):  # a probability of 0 gives an infinite loss
        loss = -np.log(probs[np.arange(len(test)), targets]).mean()
    return {"loss": float(loss), "accuracy": accuracy(confusion), "f1": macro_f1(confusion), "rows": len(test)}
