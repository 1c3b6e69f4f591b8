"""Numbers spoken as words: so scikit-learn's own checks, which give numbers, can be put to readers of texts."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from triform.sklearn import LanguageModel, TextClassifier, TextVectorizer, Translator

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spoken(rows: np.ndarray[Any, Any]) -> list[str]:
    """A word for every number: its column's letter and its size in halves, e.g. `a3 bminus1`."""
    return [
        " ".join(
            f"{LETTERS[column % 26]}{'minus' * (size < 0)}{abs(size)}"
            for column, size in enumerate(np.clip(np.round(2 * row), -99, 99).astype(int).tolist())
        )
        for row in rows
    ]


class Spoken:
    """Mixed into an estimator: looks at arrays as scikit-learn does, then hands on texts."""

    def _heard(self, X: Any, *, first: bool = False) -> list[str]:
        if not first:
            check_is_fitted(self)
        return spoken(validate_data(self, X, reset=first))

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(self._heard(X, first=True), y)  # type: ignore[misc]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string, tags.input_tags.two_d_array, tags.no_validation = False, True, False
        return tags


class SpokenClassifier(Spoken, TextClassifier):
    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._heard(X))


class SpokenVectorizer(Spoken, TextVectorizer):
    def transform(self, X: Any) -> Any:
        return super().transform(self._heard(X))


class SpokenLanguageModel(Spoken, LanguageModel):
    def score(self, X: Any, y: Any = None) -> float:
        return super().score(self._heard(X))


class SpokenTranslator(Spoken, Translator):
    """Learns to say in words what `y` is; what it says comes back as a number, for the checks subtract."""

    def fit(self, X: Any, y: Any = None) -> Any:
        texts = self._heard(X, first=True)
        return Translator.fit(self, texts, None if y is None else [f"it is {label}" for label in np.ravel(y)])

    def predict(self, X: Any) -> Any:
        return np.array([zlib.crc32(text.encode()) for text in super().predict(self._heard(X))])

    def score(self, X: Any, y: Any) -> float:
        right = sum(
            said == zlib.crc32(f"it is {label}".encode()) for said, label in zip(self.predict(X), y, strict=True)
        )
        return right / len(y)
