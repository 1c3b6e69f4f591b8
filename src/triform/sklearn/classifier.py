"""A classifier of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin

from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import Array, check_class_names, check_labels, class_names


class TextClassifier(ClassifierMixin, TextEstimator):
    """An encoder that names a text's class. After `fit`: `classes_`, and `settings_` as they were settled."""

    task = "classify"

    def fit(self, X: object, y: object = None) -> Self:
        """Learn from texts and their classes, which may be of any kind that scikit-learn knows."""
        self.classes_ = fit_classifier(self, X, y)
        return self

    @classmethod
    def from_run(cls, path: str | Path, *, device: str = "auto") -> Self:
        """A fitted classifier from a run folder. A run knows its labels as text, so `classes_` are text.

        They are sorted, as scikit-learn's scorers take them to be, in whatever order the run has them.
        """
        estimator = super().from_run(path, device=device)
        estimator.classes_ = np.unique(estimator._fitted_run.config.data.labels)
        return estimator

    def predict_proba(self, X: object) -> Array:
        """The probability of every class, (n, classes), in the order of `classes_`."""
        predictions = self._fitted_run.predict(self.check_texts(X, "X"))
        names = class_names(self.classes_)
        rows = [[(prediction.probabilities or {})[name] for name in names] for prediction in predictions]
        probabilities: Array = np.array(rows, dtype=np.float64)
        return probabilities / probabilities.sum(axis=1, keepdims=True)  # float32 sums to one less exactly

    def predict(self, X: object) -> Array:
        """The likeliest class of every text."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels


def fit_classifier(estimator: TextEstimator, X: object, y: object) -> Array:
    """Train a classifier; the classes that it learned to tell apart."""
    texts = estimator.check_texts(X, "X")
    classes, class_indices = np.unique(check_labels(y, len(texts), estimator), return_inverse=True)
    names = check_class_names(classes)
    rows = (
        {"text": text, "label": names[class_index]} for text, class_index in zip(texts, class_indices, strict=True)
    )
    estimator._train(rows, **{"data.labels": names})
    result: Array = classes
    return result
