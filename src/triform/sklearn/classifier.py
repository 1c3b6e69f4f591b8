"""Text classification as a scikit-learn estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin

from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import Array, check_class_names, check_labels, class_names


class TextClassifier(ClassifierMixin, TextEstimator):
    """A text classifier: a Transformer encoder with a classification head.

    See `TextEstimator` for the parameters. A parameter that is None is chosen from the data.

    Attributes:
        classes_: The sorted classes, available after `fit`.
        settings_: All settings of the fitted run by name, such as `model.d_model`.

    Example:
        >>> from triform.sklearn import TextClassifier
        >>> texts, labels = ["a fine film", "a dull film", "fine and good", "dull and bad"], [1, 0, 1, 0]
        >>> classifier = TextClassifier(d_model=16, n_layers=1, n_heads=2, max_steps=2, random_state=0)
        >>> classifier.fit(texts, labels).classes_
        array([0, 1])
        >>> classifier.predict_proba(["a good film"]).shape
        (1, 2)
    """

    task = "classify"

    def fit(self, X: object, y: object = None) -> Self:
        """Train on texts and their classes.

        Args:
            X: A list of texts.
            y: Their classes, of any type that scikit-learn accepts.

        Raises:
            InputError: The texts or classes cannot be used.
        """
        self.classes_ = fit_classifier(self, X, y)
        return self

    @classmethod
    def from_run(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Return a fitted classifier from a run folder. Its `classes_` are the sorted labels of the run.

        Args:
            path: The run folder of a classifier.
            device: auto, cpu, cuda or mps.

        Raises:
            CheckpointError: The folder is not a finished run of a classifier.
        """
        estimator = super().from_run(path, device=device)
        estimator.classes_ = np.unique(estimator._fitted_run.config.data.labels)
        return estimator

    def predict_proba(self, X: object) -> Array:
        """Compute the probability of every class.

        Args:
            X: A list of texts.

        Returns:
            Probabilities in the order of `classes_`, (n_texts, n_classes). Each row adds up to 1.

        Raises:
            InputError: X is not a list of texts.
        """
        predictions = self._fitted_run.predict(self.check_texts(X, "X"))
        names = class_names(self.classes_)
        rows = [[(prediction.probabilities or {})[name] for name in names] for prediction in predictions]
        probabilities: Array = np.array(rows, dtype=np.float64)
        return probabilities / probabilities.sum(axis=1, keepdims=True)  # in float64 their sum is closer to 1

    def predict(self, X: object) -> Array:
        """Return the most probable class of every text.

        Args:
            X: A list of texts.

        Returns:
            One of `classes_` for each text.

        Raises:
            InputError: X is not a list of texts.
        """
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels


def fit_classifier(estimator: TextEstimator, X: object, y: object) -> Array:
    """Train a classifier and return its classes."""
    texts = estimator.check_texts(X, "X")
    classes, class_indices = np.unique(check_labels(y, len(texts), estimator), return_inverse=True)
    names = check_class_names(classes)
    rows = (
        {"text": text, "label": names[class_index]} for text, class_index in zip(texts, class_indices, strict=True)
    )
    estimator._train(rows, **{"data.labels": names})
    result: Array = classes
    return result
