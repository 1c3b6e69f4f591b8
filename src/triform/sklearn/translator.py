"""Translation as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self

from triform.evaluation.metrics import compute_translation_metrics
from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import Array, check_pairs, check_targets, to_object_array


class Translator(TextEstimator):
    """A translator: a Transformer encoder-decoder. X are sentences, y their translations.

    See `TextEstimator` for the parameters.

    Example:
        >>> from triform.sklearn import Translator
        >>> sources, targets = ["one two", "two three"] * 4, ["un deux", "deux trois"] * 4
        >>> translator = Translator(d_model=16, n_layers=1, n_heads=2, max_steps=2, random_state=0)
        >>> translator.fit(sources, targets).predict(["one"]).shape
        (1,)
    """

    task = "translate"

    def fit(self, X: object, y: object = None) -> Self:
        """Train on pairs. Pairs with an empty side are skipped.

        Args:
            X: A list of sentences.
            y: Their translations, in the same order.

        Raises:
            InputError: The texts cannot be used, or every pair has an empty side.
        """
        sources = self.check_texts(X, "X")
        targets = check_targets(y, len(sources), self)
        check_pairs(sources, targets)
        self._train({"source": source, "target": target} for source, target in zip(sources, targets, strict=True))
        return self

    def predict(self, X: object) -> Array:
        """Return a translation of every sentence. The default is beam search with 4 hypotheses.

        Args:
            X: A list of sentences.

        Returns:
            One translation for each sentence.

        Raises:
            InputError: X is not a list of texts.
        """
        run = self._fitted_run
        return to_object_array([prediction.output for prediction in run.predict(self.check_texts(X, "X"))])

    def score(self, X: object, y: object) -> float:
        """Return the corpus BLEU of sacreBLEU divided by 100, which is 1.0 if every translation equals `y`.

        Args:
            X: A list of sentences.
            y: Their correct translations.

        Returns:
            A number between 0 and 1; higher is better.
        """
        translations = self.predict(X)
        return (
            compute_translation_metrics(translations.tolist(), check_targets(y, len(translations), self))["bleu"]
            / 100
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
