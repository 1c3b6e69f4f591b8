"""A language model mixed with counts: n-grams of the training text, or a cache of recent tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from triform.config import MixComponent
from triform.errors import ConfigError
from triform.evaluation.baselines.ngram import MAX_TOKENS, FloatArray, IntArray, NGramModel
from triform.evaluation.metrics import Metrics
from triform.evaluation.mixture import (
    MixtureWeights,
    cache_probabilities,
    mix_held_out,
    next_cache_probabilities,
)
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.baseline import encode_start
from triform.tasks.evaluation import iter_logits
from triform.tasks.generate import Generate
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.task import Task

TokenLosses = Callable[[LanguageModelDataset], FloatArray]
MAX_WEIGHT_TOKENS = 200_000  # of the validation data, on which the weights are learned


@dataclass(frozen=True)
class ScoredTokens:
    """The probabilities that the components of a mixture give to the tokens of a text.

    Attributes:
        probs: The probability of each token except the first: (components, tokens).
        buckets: The number of tokens of the longest context of each prediction that the n-gram model knows.
    """

    probs: FloatArray
    buckets: IntArray


class MixedLanguageModel:
    """A language model with components that are mixed in, with weights learned on validation data.

    Args:
        task: The task of a trained run.
        mix: The components, as in `decode.mix`.
        losses: Returns the loss in nats of each token of a text except the first, as the model predicts it. By
            default, the model is evaluated in windows.

    Attributes:
        weights: The weights of the components by the length of the known context.
        notices: Messages for the user about how the components were made.

    Raises:
        ConfigError: The run is not a language model, or there is no validation data.
        DataError: The training data cannot be read.
    """

    def __init__(self, task: Task, mix: Sequence[MixComponent], losses: TokenLosses | None = None) -> None:
        self.task, self.mix, self.notices = require_language_model(task, "decode.mix"), tuple(mix), list[str]()
        self.losses = losses or partial(token_losses, self.task)
        data = self.task.text_data
        if not data.config.data.train:
            raise ConfigError("the model was imported without training data, which decode.mix needs")
        valid: LanguageModelDataset | None = data.load_validation_dataset([])
        if valid is None:
            raise ConfigError("decode.mix learns its weights on validation data, and the run has none")
        self.ngram, self.valid = self._fit_ngram() if "ngram" in mix else None, valid
        self.weights = self._fit_weights(self.score(valid.sample(MAX_WEIGHT_TOKENS)))

    def _fit_ngram(self) -> NGramModel:
        data, tokenizer = self.task.text_data, self.task.tokenizer
        tokens, is_part = encode_start(data.training_examples(), tokenizer, MAX_TOKENS)
        if is_part:
            self.notices.append(f"n-grams are counted in the first {MAX_TOKENS:,} tokens of the training data")
        return NGramModel.fit(tokens, tokenizer.vocab_size)

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components, the model first."""
        names = {"ngram": f"{self.ngram.order}-gram" if self.ngram else "", "cache": "cache"}
        return ("model", *(names[name] for name in self.mix))

    def describe(self) -> str:
        """Return a sentence with the mean weights for the user."""
        means = zip(self.components, self.weights.mean, strict=True)
        values = ", ".join(f"{name} {weight:.3f}" for name, weight in means)
        return f"mean weights of {' + '.join(self.components)}, learned on validation data: {values}"

    def to_dict(self) -> dict[str, object]:
        """Return the components and their weights as JSON values."""
        return {
            "components": list(self.components),
            "weights": self.weights.mean.tolist(),
            "weights_by_known_context": self.weights.by_bucket.tolist(),
        }

    def score(self, data: LanguageModelDataset) -> ScoredTokens:
        """Return the probabilities of a text in each component."""
        tokens = np.asarray(data.store.tokens, np.int64)
        probs, buckets = [np.exp(-self.losses(data))], np.zeros(len(tokens) - 1, np.int64)
        for name in self.mix:
            if name == "cache":
                probs.append(cache_probabilities(tokens, self.task.tokenizer.vocab_size))
            elif self.ngram is not None:
                ngram_probs, buckets = self.ngram.score(tokens)
                probs.append(ngram_probs)
        return ScoredTokens(np.stack(probs), buckets)

    def mix_next(self, model_probs: FloatArray, contexts: Sequence[Sequence[int]]) -> FloatArray:
        """Return the probabilities of all next tokens after some contexts.

        Args:
            model_probs: The probabilities of the model: (contexts, vocabulary).
            contexts: The tokens before.
        """
        mixed = np.empty_like(model_probs)
        for index, context in enumerate(contexts):
            probs, bucket = [model_probs[index]], 0
            for name in self.mix:
                if name == "cache":
                    probs.append(next_cache_probabilities(context, model_probs.shape[1]))
                elif self.ngram is not None:
                    ngram_probs, bucket = self.ngram.next_probabilities(context)
                    probs.append(ngram_probs)
            mixed[index] = self.weights.by_bucket[bucket] @ np.stack(probs)
        return mixed

    def _fit_weights(self, scored: ScoredTokens) -> MixtureWeights:
        n_buckets = self.ngram.order if self.ngram else 1
        return MixtureWeights.fit(scored.probs, scored.buckets, n_buckets)

    def evaluate(self, data: LanguageModelDataset) -> Metrics:
        """Return the metrics of the mixture on a text. A mixture has no `token_accuracy`.

        If the text is the validation data, the weights for each of its halves are learned on the other half.
        """
        scored = self.score(data)
        if np.array_equal(data.store.tokens, self.valid.store.tokens):
            probs = mix_held_out(scored.probs, scored.buckets)
        else:
            probs = self.weights.mix(scored.probs, scored.buckets)
        sums = [float(-np.log(probs).sum()), math.nan, float(len(probs))]
        metrics = self.task.evaluator.compute_metrics(sums, data, quick=False)
        return {key: value for key, value in metrics.items() if key != "token_accuracy"}


def require_language_model(task: Task, option: str) -> Generate:
    """Return the task of a language model.

    Raises:
        ConfigError: The task is another one.
    """
    if not isinstance(task, Generate):
        raise ConfigError(f"{option} is for generate; this run is for {task.name}")
    return task


@torch.inference_mode()
def token_losses(task: Generate, data: LanguageModelDataset) -> FloatArray:
    """Return the loss in nats of each token of a text except the first, in order."""
    evaluator = task.evaluator
    task.model.eval()
    losses = []
    for batch in evaluator.batches(data, quick=False):
        batch = batch.to(task.device)
        states = evaluator.hidden_states(batch)
        for _, logits, targets in iter_logits(states, task.model.lm_head, batch.targets, task.tokenizer.vocab_size):
            values = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="none")
            losses.append(values[targets != IGNORE_INDEX].cpu().double().numpy())
    return np.concatenate(losses)
