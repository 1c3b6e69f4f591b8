"""Text features as a scikit-learn transformer: the vectors that the head of a classifier reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from triform.errors import ConfigError
from triform.sklearn.classifier import fit_classifier
from triform.sklearn.estimator import PARAMETER_SETTINGS, TextEstimator
from triform.sklearn.validation import Array
from triform.tasks.classify import ClassificationPredictor


class TextVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):
    """Transformer of texts into vectors: the pooled states of a Transformer encoder, of width `d_model`.

    `fit(X, y)` trains a classifier, whose head is not used. With `run`, the folder of a trained classifier, `fit`
    only opens it. The setting `model.pooling` selects how states are pooled; the default is their mean.

    Args:
        run: The folder of a trained classifier.

    See `TextEstimator` for the other parameters.

    Example:
        >>> from triform.sklearn import TextVectorizer
        >>> texts, labels = ["a fine film", "a dull film", "fine and good", "dull and bad"], [1, 0, 1, 0]
        >>> vectorizer = TextVectorizer(d_model=16, n_layers=1, n_heads=2, max_steps=2, random_state=0)
        >>> vectorizer.fit_transform(texts, labels).shape
        (4, 16)
    """

    task = "classify"

    def __init__(
        self,
        *,
        run: str | Path | None = None,
        preset: str | None = None,
        d_model: int | None = None,
        n_layers: int | None = None,
        n_heads: int | None = None,
        dropout: float | None = None,
        tokenizer: str | None = None,
        vocab_size: int | None = None,
        max_len: int | None = None,
        epochs: float | None = None,
        max_steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float = 0.0,
        settings: Mapping[str, object] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            preset=preset, d_model=d_model, n_layers=n_layers, n_heads=n_heads, dropout=dropout,
            tokenizer=tokenizer, vocab_size=vocab_size, max_len=max_len, epochs=epochs, max_steps=max_steps,
            batch_size=batch_size, learning_rate=learning_rate, validation_fraction=validation_fraction,
            settings=settings, device=device, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.run = run

    def fit(self, X: object, y: object = None) -> Self:
        """Train on texts and their classes. With `run`, only open the run and ignore `y`.

        Args:
            X: A list of texts.
            y: Their classes.

        Raises:
            ConfigError: Parameters were set together with `run`, which determines them.
            InputError: The texts or classes cannot be used.
        """
        if self.run is None:
            fit_classifier(self, X, y)
            return self
        self.check_texts(X, "X")
        defaults = TextVectorizer().get_params()
        changed = [
            name for name in (*PARAMETER_SETTINGS, "preset", "settings") if getattr(self, name) != defaults[name]
        ]
        if changed:
            raise ConfigError(f"run={str(self.run)!r} determines all settings; remove {', '.join(changed)}")
        estimator = self.from_run(self.run, device=self.device)
        self._store_run(estimator._fitted_run, estimator._files)
        return self

    def transform(self, X: object) -> Array:
        """Compute the vectors of texts.

        Args:
            X: A list of texts.

        Returns:
            One row of float32 for each text, (n_texts, d_model).

        Raises:
            InputError: X is not a list of texts.
        """
        predictor = cast(ClassificationPredictor, self._fitted_run.task.predictor)
        return predictor.pooled_states(self.check_texts(X, "X"))

    @property
    def _n_features_out(self) -> int:
        """The number of features, which `get_feature_names_out` reads."""
        return self._fitted_run.config.model.d_model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.run is None
        tags.transformer_tags.preserves_dtype = []
        return tags
