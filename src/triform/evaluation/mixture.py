"""Mixtures of language models: p(token) = Σ weight · p(token | component), with weights learned on held-out text.

The weights depend on how much of the context the n-gram model knows (Jelinek and Mercer, 1980): a long context that
occurred in the training text makes its counts more reliable. They do not depend on the predicted token, so the
probabilities of all tokens still sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from triform.evaluation.baselines.ngram import FloatArray, IntArray

CACHE_SIZE = 500  # the most recent tokens, which a cache counts
MAX_EM_STEPS = 200
EM_TOLERANCE = 1e-6  # of the weights
PRIOR_TOKENS = 50.0  # by which the weights of a bucket are pulled towards those of all tokens


@dataclass(frozen=True)
class MixtureWeights:
    """The weights of the components of a mixture.

    Attributes:
        by_bucket: A row of weights for each bucket of predictions; each row sums to 1: (buckets, components).
        counts: The number of held-out predictions in each bucket.
    """

    by_bucket: FloatArray
    counts: IntArray

    @classmethod
    def fit(cls, probs: FloatArray, buckets: IntArray, n_buckets: int) -> Self:
        """Find the weights with the highest likelihood by expectation maximisation.

        Args:
            probs: The probability that each component gives to each held-out token: (components, tokens).
            buckets: The bucket of each token.
            n_buckets: The number of buckets. Those with few tokens get about the weights of all tokens.
        """
        overall = maximise_likelihood(probs, np.zeros(len(probs)))
        prior = PRIOR_TOKENS * overall
        rows = [maximise_likelihood(probs[:, buckets == bucket], prior) for bucket in range(n_buckets)]
        return cls(np.stack(rows), np.bincount(buckets, minlength=n_buckets))

    def mix(self, probs: FloatArray, buckets: IntArray) -> FloatArray:
        """Return the probability of each token in the mixture. The arguments are those of `fit`."""
        mixed: FloatArray = (self.by_bucket[buckets].T * probs).sum(axis=0)
        return mixed

    @property
    def mean(self) -> FloatArray:
        """The mean weight of each component over the held-out predictions."""
        mean: FloatArray = self.counts @ self.by_bucket / self.counts.sum()
        return mean


def mix_held_out(probs: FloatArray, buckets: IntArray) -> FloatArray:
    """Return the probability of each token of a held-out text in a mixture: (components, tokens) -> (tokens).

    The weights for each half of the text are learned on its other half.

    Args:
        probs: The probability that each component gives to each token.
        buckets: The bucket of each token, see `MixtureWeights`.
    """
    n_buckets, middle = int(buckets.max()) + 1, len(buckets) // 2
    parts = [(probs[:, :middle], buckets[:middle]), (probs[:, middle:], buckets[middle:])]
    weights = [MixtureWeights.fit(*part, n_buckets) for part in parts]
    return np.concatenate([weights[1 - index].mix(*part) for index, part in enumerate(parts)])


def maximise_likelihood(probs: FloatArray, prior: FloatArray) -> FloatArray:
    """Return the weights that maximise the likelihood of tokens: (components, tokens) -> (components).

    Args:
        probs: The probability of each token in each component.
        prior: Tokens that each component is taken to have predicted already.
    """
    weights = np.full(len(probs), 1 / len(probs))
    total = probs.shape[1] + prior.sum()
    for _ in range(MAX_EM_STEPS if total else 0):
        shares = weights[:, None] * probs
        updated = ((shares / shares.sum(axis=0)).sum(axis=1) + prior) / total
        change, weights = np.abs(updated - weights).max(), updated
        if change < EM_TOLERANCE:
            break
    return weights


def cache_probabilities(tokens: IntArray, vocab_size: int, size: int = CACHE_SIZE) -> FloatArray:
    """Return the probability of each token except the first in a unigram cache of the `size` tokens before it.

    One more count is spread over the vocabulary, so that every token has a probability above 0 and their sum is 1.
    """
    counts, probs = np.zeros(vocab_size, np.int64), np.empty(len(tokens) - 1)
    for index in range(1, len(tokens)):
        counts[tokens[index - 1]] += 1
        if index > size:
            counts[tokens[index - 1 - size]] -= 1
        probs[index - 1] = (counts[tokens[index]] + 1 / vocab_size) / (min(index, size) + 1)
    return probs


def next_cache_probabilities(context: Sequence[int], vocab_size: int, size: int = CACHE_SIZE) -> FloatArray:
    """Return the probabilities of all tokens after a context in the cache of `cache_probabilities`."""
    recent = np.asarray(context[-size:], np.int64)
    probs: FloatArray = (np.bincount(recent, minlength=vocab_size) + 1 / vocab_size) / (len(recent) + 1)
    return probs
