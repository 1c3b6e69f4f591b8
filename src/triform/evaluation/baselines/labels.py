"""The majority baseline, and how label baselines are judged: as `classify` is."""

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
    """Says the commonest label of the training rows, whatever the text; every label as sure as it was common."""

    def __init__(self, labels: Sequence[str], class_prior: FloatArray) -> None:
        self.labels, self.class_prior = labels, class_prior

    @classmethod
    def fit(cls, train: Sequence[LabelledText]) -> Self:
        if not train:
            raise BaselineError("no rows to learn from")
        counts = Counter(row.label for row in train)
        labels = sorted(counts)
        return cls(labels, np.array([counts[label] for label in labels]) / len(train))

    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        return np.tile(self.class_prior, (len(texts), 1))

    def evaluate(self, test: Sequence[LabelledText]) -> Metrics:
        return evaluate_labels(self.labels, self.predict([row.text for row in test]), test)


def evaluate_labels(labels: Sequence[str], probs: FloatArray, test: Sequence[LabelledText]) -> Metrics:
    """Scores under the names that `classify` uses; a label that was never trained on is always wrong."""
    if not test:
        raise BaselineError("no rows to judge by")
    all_labels = [*labels, *sorted({row.label for row in test} - set(labels))]
    label_ids = {label: label_id for label_id, label in enumerate(all_labels)}
    probs = np.pad(probs, ((0, 0), (0, len(all_labels) - len(labels))))
    targets = np.array([label_ids[row.label] for row in test])
    confusion = np.zeros((len(all_labels), len(all_labels)), np.int64)
    np.add.at(confusion, (targets, probs.argmax(1)), 1)
    with np.errstate(divide="ignore"):  # what was given no chance costs without end
        loss = -np.log(probs[np.arange(len(test)), targets]).mean()
    return {"loss": float(loss), "accuracy": accuracy(confusion), "f1": macro_f1(confusion), "rows": len(test)}
