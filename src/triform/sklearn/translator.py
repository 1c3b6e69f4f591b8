"""A translator of sentences."""

from __future__ import annotations

from typing import Any, Self

from triform.evaluation.metrics import compute_translation_metrics
from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import Array, check_pairs, check_targets, to_object_array


class Translator(TextEstimator):
    """An encoder-decoder: X are sentences, y their translations."""

    task = "translate"

    def fit(self, X: object, y: object = None) -> Self:
        """Learn from pairs; those that lack a side are left out."""
        sources = self.check_texts(X, "X")
        targets = check_targets(y, len(sources), self)
        check_pairs(sources, targets)
        self._train({"source": source, "target": target} for source, target in zip(sources, targets, strict=True))
        return self

    def predict(self, X: object) -> Array:
        """A translation of every sentence, decoded as the settings say (a beam of 4 unless set)."""
        run = self._fitted_run
        return to_object_array([prediction.output for prediction in run.predict(self.check_texts(X, "X"))])

    def score(self, X: object, y: object) -> float:
        """Corpus BLEU as sacreBLEU computes it, as a share: 1.0 where every translation is the given one."""
        translations = self.predict(X)
        return (
            compute_translation_metrics(translations.tolist(), check_targets(y, len(translations), self))["bleu"]
            / 100
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
