"""An interpolated n-gram language model with modified Kneser-Ney discounts (Chen and Goodman, 1999).

Each k-gram has an integer key: the id of its first k-1 tokens times the vocabulary size, plus its last token. The
sorted keys are a table in which the k-grams of a whole text are looked up at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from triform.data.readers import TextChunk
from triform.evaluation.baselines.errors import BaselineError
from triform.evaluation.metrics import Metrics, bits_per_byte, perplexity
from triform.text import EOS

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Tokenize = Callable[[str], Sequence[int]]

MAX_ORDER = 8  # the highest order that is tried
MAX_TOKENS = 10_000_000  # all orders are counted in memory
VALID_DIVISOR = 10  # the order is selected on the last tenth of the training text
DEFAULT_DISCOUNTS = (0.5, 1.0, 1.5)  # used when there are too few counts to estimate discounts


@dataclass(frozen=True)
class DiscountedCounts:
    """Discounted probabilities of the k-grams of one order, and the share of each context for lower orders."""

    discounted_probs: FloatArray  # (k-grams + 1); the last, for unseen k-grams, is 0
    backoff_weights: FloatArray  # (contexts + 1); the last, for unseen contexts, is 1

    @classmethod
    def from_counts(cls, counts: IntArray, context: IntArray, n_contexts: int) -> Self:
        """Discount the counts of k-grams, each with the id of its context."""
        discount = np.array([0.0, *estimate_discounts(counts)])[np.minimum(counts, 3)]
        total = np.bincount(context, counts, minlength=n_contexts)
        backoff_mass = np.bincount(context, discount, minlength=n_contexts)
        unfollowed = total == 0  # no token follows the last ones of the text
        backoff_mass[unfollowed] = total[unfollowed] = 1
        return cls(
            discounted_probs=np.append((counts - discount) / total[context], 0.0),
            backoff_weights=np.append(backoff_mass / total, 1.0),
        )

    def interpolate(self, gram: IntArray, context: IntArray, lower_probs: FloatArray) -> FloatArray:
        """Combine the discounted probabilities with those of the next lower order."""
        return self.discounted_probs[gram] + self.backoff_weights[context] * lower_probs


@dataclass(frozen=True)
class NGramTable:
    """All k-grams of the training text, with their counts as the highest order and as a lower order."""

    keys: IntArray
    top: DiscountedCounts  # from the number of occurrences
    lower: DiscountedCounts | None = (
        None  # from the number of different preceding tokens; None for the highest order
    )

    def lookup(self, keys: IntArray) -> IntArray:
        """Return the ids of k-grams by their keys, and -1 (the index of the last entry) for unseen k-grams."""
        indices = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[indices] == keys, indices, -1)


class NGramModel:
    """An n-gram model. It also evaluates all lower orders, so that one fit shows which order is best."""

    def __init__(self, tables: Sequence[NGramTable], vocab_size: int) -> None:
        self.tables, self.vocab_size = tables, vocab_size

    @property
    def order(self) -> int:
        """The highest order: the number of tokens in an n-gram, including the predicted one."""
        return len(self.tables)

    @classmethod
    def fit(cls, tokens: Sequence[int] | IntArray, vocab_size: int, *, order: int = 0) -> Self:
        """Count the n-grams of a text.

        Args:
            tokens: The token ids of the text.
            vocab_size: The size of the vocabulary.
            order: The order. 0 selects the order that is best on the last tenth of the text, fitted on the rest.
        """
        stream = validate_tokens(tokens, vocab_size)
        train_size = len(stream) - len(stream) // VALID_DIVISOR
        if not order and len(stream) - train_size < 2:
            order = min(2, len(stream))
        if not order:
            candidate = cls.fit(stream[:train_size], vocab_size, order=MAX_ORDER)
            order = int(np.argmin(candidate.losses(stream[train_size:]))) + 1
        return cls(count_ngrams(pad_start(stream, vocab_size, order), vocab_size, order), vocab_size)

    def losses(self, tokens: Sequence[int] | IntArray) -> list[float]:
        """Return the mean loss in nats of all tokens except the first, for each order up to the highest."""
        stream = validate_tokens(tokens, self.vocab_size)
        ngram_ids = self._ngram_ids(pad_start(stream, self.vocab_size, self.order))
        contexts = [ids[-len(stream) : -1] for ids in ngram_ids]  # the contexts of all tokens except the first
        return [float(-np.log(probs).mean()) for probs in self._probabilities(contexts, stream[1:])]

    def score(self, tokens: Sequence[int] | IntArray) -> tuple[FloatArray, IntArray]:
        """Return the probability of each token except the first, and how many tokens of its context are known.

        The second array has the length of the longest context that occurs in the training text, from 0 to the order
        minus one.
        """
        stream = validate_tokens(tokens, self.vocab_size)
        ngram_ids = self._ngram_ids(pad_start(stream, self.vocab_size, self.order))
        contexts = [ids[-len(stream) : -1] for ids in ngram_ids]
        n_known = np.sum([context >= 0 for context in contexts[1:]], axis=0, dtype=np.int64)
        return self._probabilities(contexts, stream[1:])[-1], np.broadcast_to(n_known, len(stream) - 1)

    def next_probabilities(self, context: Sequence[int]) -> tuple[FloatArray, int]:
        """Return the probabilities of all tokens after a context, and how many tokens of the context are known."""
        recent = validate_tokens(context[-self.order :], self.vocab_size)
        contexts = [ids[-1] for ids in self._ngram_ids(pad_start(recent, self.vocab_size, self.order))]
        every_token = np.arange(self.vocab_size)
        probs = self._probabilities([np.full(self.vocab_size, value) for value in contexts], every_token)[-1]
        return probs, sum(int(value >= 0) for value in contexts[1:])

    def loss(self, tokens: Sequence[int] | IntArray) -> float:
        """Return the mean loss in nats of all tokens except the first."""
        return self.losses(tokens)[-1]

    def _ngram_ids(self, stream: IntArray) -> list[IntArray]:
        """Return the id of the k-gram that ends at each position, for k from 0 to the order minus one."""
        ngram_ids = [np.zeros(len(stream), np.int64)]
        for table in self.tables[:-1]:
            ngram_ids.append(table.lookup(ngram_keys(ngram_ids[-1], stream, self.vocab_size)))
        return ngram_ids

    def _probabilities(self, contexts: Sequence[IntArray], tokens: IntArray) -> list[FloatArray]:
        """Return the probabilities of tokens after contexts for each order. Order 0 is the uniform distribution."""
        lower_probs = np.full(len(tokens), 1 / self.vocab_size)
        probs_by_order = []
        for table, context in zip(self.tables, contexts, strict=True):
            gram = table.lookup(context * (self.vocab_size + 1) + tokens)
            probs_by_order.append(table.top.interpolate(gram, context, lower_probs))
            lower_probs = table.lower.interpolate(gram, context, lower_probs) if table.lower else lower_probs
        return probs_by_order


def validate_tokens(tokens: Sequence[int] | IntArray, vocab_size: int) -> IntArray:
    """Return the tokens as an array; raise `BaselineError` if it is empty or has a token outside the vocabulary."""
    stream = np.asarray(tokens, np.int64)
    if not len(stream):
        raise BaselineError("the text is empty")
    if stream.min() < 0 or stream.max() >= vocab_size:
        raise BaselineError(f"token {int(stream.max())} is outside the vocabulary of {vocab_size} tokens")
    return stream


def pad_start(stream: IntArray, vocab_size: int, order: int) -> IntArray:
    """Prepend tokens outside the vocabulary, so that the first tokens also have a context."""
    return np.concatenate([np.full(order, vocab_size), stream])


def ngram_keys(shorter_ids: IntArray, stream: IntArray, vocab_size: int) -> IntArray:
    """Return the keys of the k-grams that end at each position, from the ids of the (k-1)-grams."""
    previous_ids = np.concatenate([[0], shorter_ids[:-1]])
    return previous_ids * (vocab_size + 1) + stream


def count_ngrams(stream: IntArray, vocab_size: int, order: int) -> list[NGramTable]:
    """Count the k-grams of every order up to `order`. K-grams that end in the padding have a count of 0."""
    in_vocabulary = stream < vocab_size
    tables: list[NGramTable] = []
    ngram_ids = np.zeros(len(stream), np.int64)  # ids of the k-gram that ends at each position, at first for k = 0
    contexts = ngram_ids, 1  # the id of the context of each k-gram, and the number of contexts
    for _ in range(order):
        keys, first_index, longer_ids = np.unique(
            ngram_keys(ngram_ids, stream, vocab_size), return_index=True, return_inverse=True
        )
        counts = np.bincount(longer_ids[in_vocabulary], minlength=len(keys))
        if tables:  # each distinct longer k-gram adds one preceding token to the shorter k-gram at its end
            n_predecessors = np.bincount(ngram_ids[first_index[counts > 0]], minlength=len(tables[-1].keys))
            tables[-1] = replace(tables[-1], lower=DiscountedCounts.from_counts(n_predecessors, *contexts))
        contexts = keys // (vocab_size + 1), len(tables[-1].keys) if tables else 1
        tables.append(NGramTable(keys, DiscountedCounts.from_counts(counts, *contexts)))
        ngram_ids = longer_ids
    return tables


def estimate_discounts(counts: IntArray) -> tuple[float, float, float]:
    """Estimate the discounts of k-grams that occur once, twice, and more often."""
    n1, n2, n3, n4 = np.bincount(counts[(counts > 0) & (counts < 5)], minlength=5)[1:5].tolist()
    if not n1 or not n2 or not n3 or not n4:
        return DEFAULT_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    estimated = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return (
        estimated
        if all(0 < discount <= upper for upper, discount in enumerate(estimated, 1))
        else DEFAULT_DISCOUNTS
    )


class NGramBaseline:
    """An n-gram model over the tokens of a run, evaluated like `generate` on all tokens except the first."""

    def __init__(self, model: NGramModel, tokenize: Tokenize, *, lossless: bool, eos_id: int | None = EOS) -> None:
        self.model, self.tokenize, self.lossless, self.eos_id = model, tokenize, lossless, eos_id

    @classmethod
    def fit(
        cls, train: Iterable[TextChunk], tokenize: Tokenize, vocab_size: int,
        *, lossless: bool = False, order: int = 0, eos_id: int | None = EOS,
    ) -> Self:  # fmt: skip
        """Fit the baseline to the chunks of a text.

        Args:
            train: The training text.
            tokenize: Turns a chunk into token ids.
            vocab_size: The size of the vocabulary.
            lossless: Whether no character is lost in tokenization, so that bits per byte can be computed.
            order: The order. 0 selects it on held-out text.
            eos_id: The token after each document, or None.
        """
        model = NGramModel.fit(token_stream(train, tokenize, eos_id), vocab_size, order=order)
        return cls(model, tokenize, lossless=lossless, eos_id=eos_id)

    def evaluate(self, test: Sequence[TextChunk]) -> Metrics:
        """Return the metrics that `generate` reports, and the order."""
        stream = token_stream(test, self.tokenize, self.eos_id)
        if len(stream) < 2:
            raise BaselineError("the text to evaluate has fewer than two tokens")
        loss, n_tokens = self.model.loss(stream), len(stream) - 1
        n_bytes = sum(len(piece.text.encode()) for piece in test)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            **({"bits_per_byte": bits_per_byte(loss * n_tokens, n_bytes)} if self.lossless else {}),
            "tokens": n_tokens,
            "order": self.model.order,
        }


def token_stream(pieces: Iterable[TextChunk], tokenize: Tokenize, eos_id: int | None = EOS) -> IntArray:
    """Return the tokens of all chunks in one array, with an end token after each document, like `generate`."""
    suffix = [] if eos_id is None else [eos_id]
    chunks, n_tokens = [np.zeros(0, np.int64)], 0
    for piece in pieces:
        chunks.append(np.array([*tokenize(piece.text), *(suffix * piece.ends_document)], np.int64))
        n_tokens += len(chunks[-1])
        if n_tokens > MAX_TOKENS:
            raise BaselineError(
                f"the text has more than {MAX_TOKENS:,} tokens, which is too much for this baseline"
            )
    return np.concatenate(chunks)
