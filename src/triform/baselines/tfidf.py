"""Words and word pairs weighted by TF-IDF, and logistic regression over them: hard to beat on few texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.baselines.labels import Shares, label_scores
from triform.baselines.logistic import Sparse, fit_logistic, softmax
from triform.baselines.unfit import UnfitError
from triform.data.readers import Row
from triform.metrics import Scores, accuracy

Numbers = npt.NDArray[np.int64]
WORD = re.compile(r"\w+")
STRENGTHS = (1.0, 10.0, 100.0)  # how much the training rows count against small weights; held-out rows choose
PAIR_IN = 2  # texts; a pair met in one alone says little and most pairs are such
HELD_OUT = 10  # one row in so many


class Features:
    """Numbers for the words of the training texts and for the pairs that stand side by side in them.

    The weight of a feature in a text is 1 + ln(count), times 1 + ln((1 + texts) / (1 + texts with it)); the weights of
    a text have length 1.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.words: dict[str, int] = {}
        for word in chain.from_iterable(map(words_of, texts)):
            self.words.setdefault(word, len(self.words))
        if not self.words:
            raise UnfitError("the training texts have no words")
        rows, keys = self._keys(texts)
        known, columns = np.unique(keys, return_inverse=True)
        seen_in = np.bincount(np.unique(rows * len(known) + columns) % len(known))
        kept = (known < len(self.words)) | (seen_in >= PAIR_IN)
        self.known, self.rarity = known[kept], 1 + np.log((1 + len(texts)) / (1 + seen_in[kept]))

    def of(self, texts: Sequence[str]) -> Sparse:
        rows, keys = self._keys(texts)
        columns = np.minimum(np.searchsorted(self.known, keys), len(self.known) - 1)
        found = self.known[columns] == keys
        cells, counts = np.unique(rows[found] * len(self.known) + columns[found], return_counts=True)
        rows, columns = np.divmod(cells, len(self.known))
        values = (1 + np.log(counts)) * self.rarity[columns]
        lengths = np.sqrt(np.bincount(rows, values**2, minlength=len(texts)))
        return Sparse(rows, columns, values / lengths[rows], (len(texts), len(self.known)))

    def _keys(self, texts: Sequence[str]) -> tuple[Numbers, Numbers]:
        """Every word and every pair of every text: the row, and a key, words before pairs."""
        rows_of_words = [[self.words.get(word, -1) for word in words_of(text)] for text in texts]
        lengths = [len(row) for row in rows_of_words]
        words = np.fromiter(chain.from_iterable(rows_of_words), np.int64, sum(lengths))
        rows = np.repeat(np.arange(len(texts)), lengths)
        n = len(self.words)
        paired = (rows[:-1] == rows[1:]) & (words[:-1] >= 0) & (words[1:] >= 0)
        pairs = n + words[:-1][paired] * n + words[1:][paired]
        known = words >= 0
        return np.concatenate([rows[known], rows[:-1][paired]]), np.concatenate([words[known], pairs])


def words_of(text: str) -> Iterator[str]:
    return (found.group() for found in WORD.finditer(text.lower()))


class Tfidf:
    """The fitted baseline."""

    def __init__(self, features: Features, labels: Sequence[str], weights: Shares) -> None:
        self.features, self.labels, self.weights = features, labels, weights

    @classmethod
    def fit(cls, train: Sequence[Row], *, strength: float = 0.0) -> Self:
        """Without a strength, the one that is best on a tenth of the rows, which the rest are fitted without."""
        labels = sorted({row.label for row in train})
        if len(labels) < 2:
            only = f"only one label, {labels[0]!r}" if labels else "no rows"
            raise UnfitError(f"there is {only} to learn from")
        numbers = {label: number for number, label in enumerate(labels)}
        truth = np.array([numbers[row.label] for row in train])
        features = Features([row.text for row in train])
        x = features.of([row.text for row in train])
        strength = strength or best_strength(x, truth, len(labels))
        return cls(features, labels, fit_logistic(x, truth, len(labels), strength))

    def predict(self, texts: Sequence[str]) -> Shares:  # (texts, labels)
        return shares_of(self.features.of(texts), self.weights)

    def score(self, test: Sequence[Row]) -> Scores:
        return label_scores(self.labels, self.predict([row.text for row in test]), test)


def shares_of(x: Sparse, weights: Shares) -> Shares:
    return softmax(x.times(weights[:-1]) + weights[-1])


def best_strength(x: Sparse, truth: Numbers, n_labels: int) -> float:
    """By accuracy, then by loss, on every tenth row."""
    held = np.arange(len(truth)) % HELD_OUT == HELD_OUT - 1
    if not held.any():
        return STRENGTHS[len(STRENGTHS) // 2]
    fitted_on, judged_by = x.some_rows(~held), x.some_rows(held)
    own = np.arange(int(held.sum())), truth[held]
    weights, found = None, []
    for strength in STRENGTHS:
        weights = fit_logistic(fitted_on, truth[~held], n_labels, strength, weights)
        shares = shares_of(judged_by, weights)
        hits = float((shares.argmax(1) == truth[held]).mean())
        found.append((hits, float(np.log(shares[own] + 1e-300).mean()), strength))
    return max(found)[-1]
