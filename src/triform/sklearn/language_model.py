"""A language model over documents."""

from __future__ import annotations

from typing import Self, cast

import numpy as np

from triform.data.readers import Piece
from triform.errors import ConfigError
from triform.settings import typed
from triform.sklearn.estimator import TextEstimator
from triform.sklearn.given import InputError, check_texts, in_users_words, plain, seed_of
from triform.tasks.generate import Generate, encode
from triform.tasks.windows import Stream


class LanguageModel(TextEstimator):
    """A decoder that goes on with a text. Every row of X is a document."""

    task = "generate"

    def fit(self, X: object, y: object = None) -> Self:
        """Learn to write such documents; y is not looked at."""
        self._train({"text": text} for text in check_texts(X))
        return self

    def score(self, X: object, y: object = None) -> float:
        """Minus the mean loss of a token, in nats: higher is better, and `exp(-score)` is the perplexity.

        Comparable only between models that cut text into the same tokens.
        """
        return -self._scores(X)["loss"]

    def bits_per_byte(self, X: object) -> float:
        """What a byte of text costs: comparable whatever the tokens, if they keep all of the text."""
        scores = self._scores(X)
        if "bits_per_byte" not in scores:
            raise InputError(
                "words leave out spaces, so bits per byte cannot be told; use tokenizer='char' or 'bpe'"
            )
        return scores["bits_per_byte"]

    def _scores(self, X: object) -> dict[str, float]:
        task = cast(Generate, self._model.task)
        pieces = (Piece(text, True, line) for line, text in enumerate(check_texts(X), 1))
        stream = Stream(*encode(pieces, task.tokenizer), task.config.data.max_len)
        if not len(stream):
            raise InputError("X has fewer than two tokens: there is nothing to score")
        return task.evaluate(stream)

    @in_users_words()
    def generate(
        self, prompts: object, *, random_state: int | np.random.RandomState | None = None, **decode: object
    ) -> list[str]:
        """A continuation of every prompt; `decode` are settings such as `max_new_tokens` and `temperature`.

        The same call gives the same texts; another `random_state` gives others.
        """
        if "seed" in decode:
            raise ConfigError("seed: a continuation is drawn by its random_state")
        settings = {name: typed(f"decode.{name}", plain(value)) for name, value in decode.items()}
        seed = None if random_state is None else seed_of(random_state)
        found = self._model.predict(check_texts(prompts, "prompts"), seed=seed, **settings)
        return [each.output for each in found]
