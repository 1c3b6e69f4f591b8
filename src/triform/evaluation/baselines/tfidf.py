"""Words and word pairs weighted by TF-IDF, and logistic regression over them: hard to beat on few texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import LabelledText
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.baselines.labels import FloatArray, evaluate_labels
from triform.evaluation.baselines.logistic import CooMatrix, fit_logistic, softmax
from triform.evaluation.baselines.words import WORD_PATTERN
from triform.evaluation.metrics import Metrics

IntArray = npt.NDArray[np.int64]
C_GRID = (1.0, 10.0, 100.0)  # how much the training rows count against small weights; held-out rows choose
MIN_BIGRAM_DF = 2  # texts; a pair met in one alone says little and most pairs are such
MAX_WORK = 1_000_000_000  # labels times characters; 15,000 reviews with two labels are a twenty-fifth of it
VALID_EVERY = 10  # one row in so many


class TfidfFeatures:
    """Numbers for the words of the training texts and for the pairs that stand side by side in them.

    The weight of a feature in a text is 1 + ln(count), times 1 + ln((1 + texts) / (1 + texts with it)); the
    weights of a text have length 1.
    """

    def __init__(self, word_ids: dict[str, int], keys: IntArray, idf: FloatArray) -> None:
        self.word_ids, self.keys, self.idf = word_ids, keys, idf

    @classmethod
    def fit(cls, texts: Sequence[str]) -> tuple[Self, CooMatrix]:
        """The features of texts, and the texts in them."""
        word_ids: dict[str, int] = {}
        rows, keys = _flatten_texts(
            [[word_ids.setdefault(word, len(word_ids)) for word in lowercase_words(text)] for text in texts]
        )
        if not word_ids:
            raise BaselineError("the training texts have no words")
        rows, keys = _add_bigrams(rows, keys, len(word_ids))
        unique_keys, columns = np.unique(keys, return_inverse=True)
        rows, columns, counts = _count_cells(rows, columns, len(unique_keys))
        document_frequency = np.bincount(columns)
        keep = (unique_keys < len(word_ids)) | (document_frequency >= MIN_BIGRAM_DF)
        features = cls(word_ids, unique_keys[keep], 1 + np.log((1 + len(texts)) / (1 + document_frequency[keep])))
        new_columns, entry_mask = np.cumsum(keep) - 1, keep[columns]
        return features, features._apply_weights(
            rows[entry_mask], new_columns[columns[entry_mask]], counts[entry_mask], len(texts)
        )

    def transform(self, texts: Sequence[str]) -> CooMatrix:
        """Texts in these features; what has none is left out."""
        token_ids = [[self.word_ids.get(word, -1) for word in lowercase_words(text)] for text in texts]
        rows, keys = _add_bigrams(*_flatten_texts(token_ids), len(self.word_ids))
        columns = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        is_known = self.keys[columns] == keys
        cells = _count_cells(rows[is_known], columns[is_known], len(self.keys))
        return self._apply_weights(*cells, len(texts))

    def _apply_weights(self, rows: IntArray, columns: IntArray, counts: IntArray, n_texts: int) -> CooMatrix:
        values = (1 + np.log(counts)) * self.idf[columns]
        norms = np.sqrt(np.bincount(rows, values**2, minlength=n_texts))
        return CooMatrix(rows, columns, values / norms[rows], (n_texts, len(self.keys)))


def _flatten_texts(token_ids: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Numbers of words end to end, each with the row of its text."""
    lengths = [len(ids) for ids in token_ids]
    flat_ids = np.fromiter(chain.from_iterable(token_ids), np.int64, sum(lengths))
    return np.repeat(np.arange(len(token_ids)), lengths), flat_ids


def _add_bigrams(rows: IntArray, word_ids: IntArray, n_words: int) -> tuple[IntArray, IntArray]:
    """Keys of words, then of the pairs side by side in a row; a word without a number (-1) gives none."""
    is_bigram = (rows[:-1] == rows[1:]) & (word_ids[:-1] >= 0) & (word_ids[1:] >= 0)
    bigram_keys = n_words + word_ids[:-1][is_bigram] * n_words + word_ids[1:][is_bigram]
    is_known = word_ids >= 0
    return np.concatenate([rows[is_known], rows[:-1][is_bigram]]), np.concatenate([word_ids[is_known], bigram_keys])


def _count_cells(rows: IntArray, columns: IntArray, n_columns: int) -> tuple[IntArray, IntArray, IntArray]:
    """Cells of a table, each once, and how often it was named."""
    cells, counts = np.unique(rows * n_columns + columns, return_counts=True)
    return cells // n_columns, cells % n_columns, counts


def lowercase_words(text: str) -> list[str]:
    return WORD_PATTERN.findall(text.lower())


class TfidfBaseline:
    """The fitted baseline."""

    def __init__(self, features: TfidfFeatures, labels: Sequence[str], weights: FloatArray) -> None:
        self.features, self.labels, self.weights = features, labels, weights

    @classmethod
    def fit(cls, train: Sequence[LabelledText], *, c: float = 0.0) -> Self:
        """Without a strength, the one that is best on a tenth of the rows, which the rest are fitted without."""
        labels = sorted({row.label for row in train})
        if len(labels) < 2:
            raise BaselineError(
                f"only one label, {labels[0]!r}, to tell apart" if labels else "no rows to learn from"
            )
        if (work := len(labels) * sum(len(row.text) for row in train)) > MAX_WORK:
            raise BaselineError(
                f"{len(labels)} labels over so much text ({work // len(labels):,} characters) are too much"
            )
        label_ids = {label: label_id for label_id, label in enumerate(labels)}
        targets = np.array([label_ids[row.label] for row in train])
        features, x = TfidfFeatures.fit([row.text for row in train])
        if c:
            return cls(features, labels, fit_logistic(x, targets, len(labels), c))
        c, initial_weights = select_c(x, targets, len(labels))
        return cls(features, labels, fit_logistic(x, targets, len(labels), c, initial_weights))

    def predict(self, texts: Sequence[str]) -> FloatArray:  # (texts, labels)
        return predict_proba(self.features.transform(texts), self.weights)

    def evaluate(self, test: Sequence[LabelledText]) -> Metrics:
        return evaluate_labels(self.labels, self.predict([row.text for row in test]), test)


def predict_proba(x: CooMatrix, weights: FloatArray) -> FloatArray:
    return softmax(x.matmul(weights[:-1]) + weights[-1])


def select_c(x: CooMatrix, targets: IntArray, n_labels: int) -> tuple[float, FloatArray | None]:
    """The best on every tenth row, by accuracy, then by loss; and the weights that the other rows gave."""
    is_valid = np.arange(len(targets)) % VALID_EVERY == VALID_EVERY - 1
    if not is_valid.any():
        return C_GRID[len(C_GRID) // 2], None
    train_x, valid_x = x.select_rows(~is_valid), x.select_rows(is_valid)
    target_index = np.arange(len(targets[is_valid])), targets[is_valid]
    best_score, weights = (-1.0, 0.0), None
    best_c: tuple[float, FloatArray | None] = 0.0, None
    for c in C_GRID:
        weights = fit_logistic(train_x, targets[~is_valid], n_labels, c, weights)
        probs = predict_proba(valid_x, weights)
        score = (
            float((probs.argmax(1) == targets[is_valid]).mean()),
            float(np.log(probs[target_index] + 1e-300).mean()),
        )
        if score > best_score:
            best_score, best_c = score, (c, weights)
    return best_c
