"""Numbers spoken as words: so scikit-learn's own checks, which give numbers, can be put to readers of texts."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from triform.sklearn import LanguageModel, TextClassifier, TextVectorizer, Translator

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def numbers_to_texts(rows: np.ndarray[Any, Any]) -> list[str]:
    """A word for every number: its column's letter and its size in halves, e.g. `a3 bminus1`."""
    return [
        " ".join(
            f"{LETTERS[column % 26]}{'minus' * (value < 0)}{abs(value)}"
            for column, value in enumerate(np.clip(np.round(2 * row), -99, 99).astype(int).tolist())
        )
        for row in rows
    ]


class NumericInputMixin:
    """Mixed into an estimator: looks at arrays as scikit-learn does, then hands on texts."""

    def _to_texts(self, X: Any, *, reset: bool = False) -> list[str]:
        if not reset:
            check_is_fitted(self)
        return numbers_to_texts(validate_data(self, X, reset=reset))

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(self._to_texts(X, reset=True), y)  # type: ignore[misc]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string, tags.input_tags.two_d_array, tags.no_validation = False, True, False
        return tags


class NumericInputClassifier(NumericInputMixin, TextClassifier):
    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._to_texts(X))


class NumericInputVectorizer(NumericInputMixin, TextVectorizer):
    def transform(self, X: Any) -> Any:
        return super().transform(self._to_texts(X))


class NumericInputLanguageModel(NumericInputMixin, LanguageModel):
    def score(self, X: Any, y: Any = None) -> float:
        return super().score(self._to_texts(X))


class NumericInputTranslator(NumericInputMixin, Translator):
    """Learns to say in words what `y` is; what it says comes back as a number, for the checks subtract."""

    def fit(self, X: Any, y: Any = None) -> Any:
        texts = self._to_texts(X, reset=True)
        return Translator.fit(self, texts, None if y is None else [f"it is {label}" for label in np.ravel(y)])

    def predict(self, X: Any) -> Any:
        return np.array([zlib.crc32(text.encode()) for text in super().predict(self._to_texts(X))])

    def score(self, X: Any, y: Any) -> float:
        n_correct = sum(
            prediction == zlib.crc32(f"it is {label}".encode())
            for prediction, label in zip(self.predict(X), y, strict=True)
        )
        return n_correct / len(y)
