"""Words and word pairs weighted by TF-IDF, and logistic regression over them: hard to beat on few texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.baselines.labels import Shares, label_scores
from triform.baselines.logistic import Sparse, fit_logistic, softmax
from triform.baselines.unfit import UnfitError
from triform.baselines.words import WORD
from triform.data.readers import Row
from triform.metrics import Scores

Numbers = npt.NDArray[np.int64]
STRENGTHS = (1.0, 10.0, 100.0)  # how much the training rows count against small weights; held-out rows choose
PAIR_IN = 2  # texts; a pair met in one alone says little and most pairs are such
HELD_OUT = 10  # one row in so many


class Features:
    """Numbers for the words of the training texts and for the pairs that stand side by side in them.

    The weight of a feature in a text is 1 + ln(count), times 1 + ln((1 + texts) / (1 + texts with it)); the
    weights of a text have length 1.
    """

    def __init__(self, words: dict[str, int], keys: Numbers, rarity: Shares) -> None:
        self.words, self.keys, self.rarity = words, keys, rarity

    @classmethod
    def fit(cls, texts: Sequence[str]) -> tuple[Self, Sparse]:
        """The features of texts, and the texts in them."""
        words: dict[str, int] = {}
        rows, keys = _numbered([[words.setdefault(word, len(words)) for word in words_of(text)] for text in texts])
        if not words:
            raise UnfitError("the training texts have no words")
        rows, keys = _with_pairs(rows, keys, len(words))
        known, columns = np.unique(keys, return_inverse=True)
        rows, columns, counts = _counted(rows, columns, len(known))
        seen_in = np.bincount(columns)
        kept = (known < len(words)) | (seen_in >= PAIR_IN)
        features = cls(words, known[kept], 1 + np.log((1 + len(texts)) / (1 + seen_in[kept])))
        number, inside = np.cumsum(kept) - 1, kept[columns]
        return features, features._weighted(rows[inside], number[columns[inside]], counts[inside], len(texts))

    def of(self, texts: Sequence[str]) -> Sparse:
        """Texts in these features; what has none is left out."""
        numbers = [[self.words.get(word, -1) for word in words_of(text)] for text in texts]
        rows, keys = _with_pairs(*_numbered(numbers), len(self.words))
        columns = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = self.keys[columns] == keys
        cells = _counted(rows[found], columns[found], len(self.keys))
        return self._weighted(*cells, len(texts))

    def _weighted(self, rows: Numbers, columns: Numbers, counts: Numbers, n_texts: int) -> Sparse:
        values = (1 + np.log(counts)) * self.rarity[columns]
        lengths = np.sqrt(np.bincount(rows, values**2, minlength=n_texts))
        return Sparse(rows, columns, values / lengths[rows], (n_texts, len(self.keys)))


def _numbered(texts: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Numbers of words end to end, each with the row of its text."""
    lengths = [len(text) for text in texts]
    words = np.fromiter(chain.from_iterable(texts), np.int64, sum(lengths))
    return np.repeat(np.arange(len(texts)), lengths), words


def _with_pairs(rows: Numbers, words: Numbers, n: int) -> tuple[Numbers, Numbers]:
    """Keys of words, then of the pairs side by side in a row; a word without a number (-1) gives none."""
    paired = (rows[:-1] == rows[1:]) & (words[:-1] >= 0) & (words[1:] >= 0)
    pairs = n + words[:-1][paired] * n + words[1:][paired]
    known = words >= 0
    return np.concatenate([rows[known], rows[:-1][paired]]), np.concatenate([words[known], pairs])


def _counted(rows: Numbers, columns: Numbers, n: int) -> tuple[Numbers, Numbers, Numbers]:
    """Cells of a table, each once, and how often it was named."""
    cells, counts = np.unique(rows * n + columns, return_counts=True)
    return cells // n, cells % n, counts


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


class Tfidf:
    """The fitted baseline."""

    def __init__(self, features: Features, labels: Sequence[str], weights: Shares) -> None:
        self.features, self.labels, self.weights = features, labels, weights

    @classmethod
    def fit(cls, train: Sequence[Row], *, strength: float = 0.0) -> Self:
        """Without a strength, the one that is best on a tenth of the rows, which the rest are fitted without."""
        labels = sorted({row.label for row in train})
        if len(labels) < 2:
            raise UnfitError(f"only one label, {labels[0]!r}, to tell apart" if labels else "no rows to learn from")
        numbers = {label: number for number, label in enumerate(labels)}
        truth = np.array([numbers[row.label] for row in train])
        features, x = Features.fit([row.text for row in train])
        if strength:
            return cls(features, labels, fit_logistic(x, truth, len(labels), strength))
        strength, nearby = best_strength(x, truth, len(labels))
        return cls(features, labels, fit_logistic(x, truth, len(labels), strength, nearby))

    def predict(self, texts: Sequence[str]) -> Shares:  # (texts, labels)
        return shares_of(self.features.of(texts), self.weights)

    def score(self, test: Sequence[Row]) -> Scores:
        return label_scores(self.labels, self.predict([row.text for row in test]), test)


def shares_of(x: Sparse, weights: Shares) -> Shares:
    return softmax(x.times(weights[:-1]) + weights[-1])


def best_strength(x: Sparse, truth: Numbers, n_labels: int) -> tuple[float, Shares | None]:
    """The best on every tenth row, by accuracy, then by loss; and the weights that the other rows gave."""
    held = np.arange(len(truth)) % HELD_OUT == HELD_OUT - 1
    if not held.any():
        return STRENGTHS[len(STRENGTHS) // 2], None
    fitted_on, judged_by = x.some_rows(~held), x.some_rows(held)
    own = np.arange(len(truth[held])), truth[held]
    best, weights = (-1.0, 0.0), None
    chosen: tuple[float, Shares | None] = 0.0, None
    for strength in STRENGTHS:
        weights = fit_logistic(fitted_on, truth[~held], n_labels, strength, weights)
        shares = shares_of(judged_by, weights)
        found = float((shares.argmax(1) == truth[held]).mean()), float(np.log(shares[own] + 1e-300).mean())
        if found > best:
            best, chosen = found, (strength, weights)
    return chosen
