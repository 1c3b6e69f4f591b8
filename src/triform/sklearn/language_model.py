"""A language model over documents."""

from __future__ import annotations

from typing import Self, cast

import numpy as np

from triform.config.settings import coerce_setting
from triform.errors import ConfigError
from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import InputError, resolve_seed, to_python_scalar, translate_errors
from triform.tasks.language_model_data import LanguageModelData


class LanguageModel(TextEstimator):
    """A decoder that goes on with a text. Every row of X is a document."""

    task = "generate"

    def fit(self, X: object, y: object = None) -> Self:
        """Learn to write such documents; y is not looked at."""
        self._train({"text": text} for text in self.check_texts(X, "X"))
        return self

    def score(self, X: object, y: object = None) -> float:
        """Minus the mean loss of a token, in nats: higher is better, and `exp(-score)` is the perplexity.

        Comparable only between models that cut text into the same tokens.
        """
        return -self._evaluate(X)["loss"]

    def bits_per_byte(self, X: object) -> float:
        """What a byte of text costs: comparable whatever the tokens, if they keep all of the text."""
        metrics = self._evaluate(X)
        if "bits_per_byte" not in metrics:
            raise InputError(
                "words leave out spaces, so bits per byte cannot be told; use tokenizer='char' or 'bpe'"
            )
        return metrics["bits_per_byte"]

    def _evaluate(self, X: object) -> dict[str, float]:
        task = self._fitted_run.task
        dataset = cast(LanguageModelData, task.data).load_documents(self.check_texts(X, "X"))
        if not len(dataset):
            raise InputError("X has fewer than two tokens: there is nothing to score")
        return task.evaluator.evaluate(dataset)

    @translate_errors()
    def generate(
        self, prompts: object, *, random_state: int | np.random.RandomState | None = None, **decode: object
    ) -> list[str]:
        """A continuation of every prompt; `decode` are settings such as `max_new_tokens` and `temperature`.

        The same call gives the same texts; another `random_state` gives others.
        """
        if "seed" in decode:
            raise ConfigError("seed: a continuation is drawn by its random_state")
        settings = {
            name: coerce_setting(f"decode.{name}", to_python_scalar(value)) for name, value in decode.items()
        }
        seed = None if random_state is None else resolve_seed(random_state)
        predictions = self._fitted_run.predict(self.check_texts(prompts, "prompts"), seed=seed, **settings)
        return [prediction.output for prediction in predictions]
