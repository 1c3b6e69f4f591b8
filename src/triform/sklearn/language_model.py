"""Language modelling as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self, cast

import numpy as np

from triform.config.settings import coerce_setting
from triform.errors import ConfigError
from triform.sklearn.estimator import TextEstimator
from triform.sklearn.validation import InputError, resolve_seed, to_python_scalar, translate_errors
from triform.tasks.language_model_data import LanguageModelData


class LanguageModel(TextEstimator):
    """A language model: a Transformer decoder that continues a text. Every row of X is a document.

    See `TextEstimator` for the parameters.

    Example:
        >>> from triform.sklearn import LanguageModel
        >>> documents = ["the cat sat on the mat", "the dog sat on the log"] * 4
        >>> model = LanguageModel(d_model=16, n_layers=1, n_heads=2, max_len=8, max_steps=2, random_state=0)
        >>> model.fit(documents).score(documents) < 0
        True
        >>> len(model.generate(["the cat"], max_new_tokens=4))
        1
    """

    task = "generate"

    def fit(self, X: object, y: object = None) -> Self:
        """Train on documents. `y` is ignored.

        Args:
            X: A list of documents.
            y: Ignored; scikit-learn passes it.

        Raises:
            InputError: The documents cannot be used, for example because they are too short.
        """
        self._train({"text": text} for text in self.check_texts(X, "X"))
        return self

    def score(self, X: object, y: object = None) -> float:
        """Compute the negative mean loss per token in nats. `exp(-score)` is the perplexity.

        Scores are comparable only between models with the same tokenizer.

        Args:
            X: A list of documents.
            y: Ignored; scikit-learn passes it.

        Returns:
            A number below 0; higher is better.

        Raises:
            InputError: X has fewer than two tokens.
        """
        return -self._evaluate(X)["loss"]

    def bits_per_byte(self, X: object) -> float:
        """Compute the loss in bits per byte of text, which is comparable between tokenizers.

        Args:
            X: A list of documents.

        Returns:
            A number above 0; lower is better.

        Raises:
            InputError: The tokenizer is not lossless, so bytes cannot be counted.
        """
        metrics = self._evaluate(X)
        if "bits_per_byte" not in metrics:
            raise InputError(
                "a word tokenizer drops spaces, so bits per byte cannot be computed; use tokenizer='char' or 'bpe'"
            )
        return metrics["bits_per_byte"]

    def _evaluate(self, X: object) -> dict[str, float]:
        task = self._fitted_run.task
        dataset = cast(LanguageModelData, task.data).load_documents(self.check_texts(X, "X"))
        if not len(dataset):
            raise InputError("X has fewer than two tokens, so there is nothing to score")
        return task.evaluator.evaluate(dataset)

    @translate_errors()
    def generate(
        self, prompts: object, *, random_state: int | np.random.RandomState | None = None, **decode: object
    ) -> list[str]:
        """Return a continuation of every prompt.

        Args:
            prompts: A list of texts.
            random_state: The random seed for sampling. The default is the seed of the run.
            **decode: Decoding settings, such as `max_new_tokens=50` and `temperature=0.7`.

        Returns:
            The new text for each prompt, without the prompt.

        Raises:
            ConfigError: A decoding setting is unknown or out of range.
        """
        if "seed" in decode:
            raise ConfigError("seed is not a decoding setting; use random_state")
        settings: dict[str, Any] = {
            name: coerce_setting(f"decode.{name}", to_python_scalar(value)) for name, value in decode.items()
        }
        seed = None if random_state is None else resolve_seed(random_state)
        predictions = self._fitted_run.predict(self.check_texts(prompts, "prompts"), seed=seed, **settings)
        return [prediction.output for prediction in predictions]
