"""The majority baseline, and how label baselines are judged: as `classify` is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.baselines.unfit import UnfitError
from triform.data.readers import Row
from triform.metrics import Scores, accuracy, macro_f1

Shares = npt.NDArray[np.float64]


class Majority:
    """Says the commonest label of the training rows, whatever the text; every label as sure as it was common."""

    def __init__(self, labels: Sequence[str], shares: Shares) -> None:
        self.labels, self.shares = labels, shares

    @classmethod
    def fit(cls, train: Sequence[Row]) -> Self:
        if not train:
            raise UnfitError("no rows to learn from")
        counts = Counter(row.label for row in train)
        labels = sorted(counts)
        return cls(labels, np.array([counts[label] for label in labels]) / len(train))

    def predict(self, texts: Sequence[str]) -> Shares:  # (texts, labels)
        return np.tile(self.shares, (len(texts), 1))

    def score(self, test: Sequence[Row]) -> Scores:
        return label_scores(self.labels, self.predict([row.text for row in test]), test)


def label_scores(labels: Sequence[str], shares: Shares, test: Sequence[Row]) -> Scores:
    """Scores under the names that `classify` uses; a label that was never trained on is always wrong."""
    if not test:
        raise UnfitError("no rows to judge by")
    known = [*labels, *sorted({row.label for row in test} - set(labels))]
    numbers = {label: number for number, label in enumerate(known)}
    shares = np.pad(shares, ((0, 0), (0, len(known) - len(labels))))
    truth = np.array([numbers[row.label] for row in test])
    table = np.zeros((len(known), len(known)), np.int64)
    np.add.at(table, (truth, shares.argmax(1)), 1)
    with np.errstate(divide="ignore"):  # what was given no chance costs without end
        loss = -np.log(shares[np.arange(len(test)), truth]).mean()
    return {"loss": float(loss), "accuracy": accuracy(table), "f1": macro_f1(table), "rows": len(test)}
