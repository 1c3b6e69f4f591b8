"""An n-gram language model: interpolated, with modified Kneser-Ney discounts (Chen and Goodman, 1999).

A k-gram is known by one number, the number of the k-1 tokens before it times the size of the vocabulary plus its
last token; sorted, these numbers are a table in which whole texts are looked up at once.
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
VALID_DIVISOR = 10  # one part in so many of the training text, its end, chooses the order
DEFAULT_DISCOUNTS = (0.5, 1.0, 1.5)  # discounts where there are too few counts to estimate them from


@dataclass(frozen=True)
class DiscountedCounts:
    """What an order gives to each k-gram, its discounted share, and leaves in each context to the order below."""

    discounted_probs: FloatArray  # (k-grams + 1); the last, for what was never seen, is 0
    backoff_weights: FloatArray  # (contexts + 1); the last, for contexts never seen, is 1

    @classmethod
    def from_counts(cls, counts: IntArray, context: IntArray, n_contexts: int) -> Self:
        discount = np.array([0.0, *estimate_discounts(counts)])[np.minimum(counts, 3)]
        total = np.bincount(context, counts, minlength=n_contexts)
        backoff_mass = np.bincount(context, discount, minlength=n_contexts)
        unfollowed = total == 0  # the last tokens of the text are a context that nothing follows
        backoff_mass[unfollowed] = total[unfollowed] = 1
        return cls(
            discounted_probs=np.append((counts - discount) / total[context], 0.0),
            backoff_weights=np.append(backoff_mass / total, 1.0),
        )

    def interpolate(self, gram: IntArray, context: IntArray, lower_probs: FloatArray) -> FloatArray:
        return self.discounted_probs[gram] + self.backoff_weights[context] * lower_probs


@dataclass(frozen=True)
class NGramTable:
    """All k-grams of the training text, sorted, and what they give as the highest order and as a lower one."""

    keys: IntArray
    top: DiscountedCounts  # of how often each occurs
    lower: DiscountedCounts | None = (
        None  # of how many different tokens stand before each; none for the highest of all
    )

    def lookup(self, keys: IntArray) -> IntArray:
        """The number of each k-gram; -1, the place of what was never seen, where it is new."""
        indices = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[indices] == keys, indices, -1)


class NGramModel:
    """A model of `order`; lower orders can be asked too, so that one fit tells which is best."""

    def __init__(self, tables: Sequence[NGramTable], vocab_size: int) -> None:
        self.tables, self.vocab_size = tables, vocab_size

    @property
    def order(self) -> int:
        return len(self.tables)

    @classmethod
    def fit(cls, tokens: Sequence[int] | IntArray, vocab_size: int, *, order: int = 0) -> Self:
        """Count a text; without an order, the one that suits the end of the text best when fitted on the rest."""
        stream = validate_tokens(tokens, vocab_size)
        train_size = len(stream) - len(stream) // VALID_DIVISOR
        if not order and len(stream) - train_size < 2:
            order = min(2, len(stream))
        if not order:
            candidate = cls.fit(stream[:train_size], vocab_size, order=MAX_ORDER)
            order = int(np.argmin(candidate.losses(stream[train_size:]))) + 1
        return cls(count_ngrams(pad_start(stream, vocab_size, order), vocab_size, order), vocab_size)

    def losses(self, tokens: Sequence[int] | IntArray) -> list[float]:
        """Nats per token, all but the first, for a model of each order up to this one."""
        stream = validate_tokens(tokens, self.vocab_size)
        ngram_ids = self._ngram_ids(pad_start(stream, self.vocab_size, self.order))
        contexts = [ids[-len(stream) : -1] for ids in ngram_ids]  # each token but the first is said after these
        return [float(-np.log(probs).mean()) for probs in self._probabilities(contexts, stream[1:])]

    def loss(self, tokens: Sequence[int] | IntArray) -> float:
        return self.losses(tokens)[-1]

    def distribution(self, context: Sequence[int]) -> FloatArray:
        """The share of every token of the vocabulary after a context."""
        ngram_ids = self._ngram_ids(pad_start(np.array(context, np.int64), self.vocab_size, self.order))
        contexts = [np.full(self.vocab_size, ids[-1]) for ids in ngram_ids]
        return self._probabilities(contexts, np.arange(self.vocab_size))[-1]

    def _ngram_ids(self, stream: IntArray) -> list[IntArray]:
        """At each place the number of the k-gram that ends there, for k from 0 to the order less one."""
        ngram_ids = [np.zeros(len(stream), np.int64)]
        for table in self.tables[:-1]:
            ngram_ids.append(table.lookup(ngram_keys(ngram_ids[-1], stream, self.vocab_size)))
        return ngram_ids

    def _probabilities(self, contexts: Sequence[IntArray], tokens: IntArray) -> list[FloatArray]:
        """What a model of each order gives to tokens after contexts; the lowest rests on equal shares."""
        lower_probs = np.full(len(tokens), 1 / self.vocab_size)
        probs_by_order = []
        for table, context in zip(self.tables, contexts, strict=True):
            gram = table.lookup(context * (self.vocab_size + 1) + tokens)
            probs_by_order.append(table.top.interpolate(gram, context, lower_probs))
            lower_probs = table.lower.interpolate(gram, context, lower_probs) if table.lower else lower_probs
        return probs_by_order


def validate_tokens(tokens: Sequence[int] | IntArray, vocab_size: int) -> IntArray:
    stream = np.asarray(tokens, np.int64)
    if not len(stream):
        raise BaselineError("there is no text")
    if stream.min() < 0 or stream.max() >= vocab_size:
        raise BaselineError(f"token {int(stream.max())} is not in the vocabulary of {vocab_size}")
    return stream


def pad_start(stream: IntArray, vocab_size: int, order: int) -> IntArray:
    """With a token that is in no vocabulary before the first, so that the first too stands after something."""
    return np.concatenate([np.full(order, vocab_size), stream])


def ngram_keys(shorter_ids: IntArray, stream: IntArray, vocab_size: int) -> IntArray:
    """Numbers for the k-grams that end at each place, given those of the (k-1)-grams."""
    previous_ids = np.concatenate([[0], shorter_ids[:-1]])
    return previous_ids * (vocab_size + 1) + stream


def count_ngrams(stream: IntArray, vocab_size: int, order: int) -> list[NGramTable]:
    """The k-grams of every order up to this one; those that end before the text are there but count nothing."""
    in_vocabulary = stream < vocab_size
    tables: list[NGramTable] = []
    ngram_ids = np.zeros(
        len(stream), np.int64
    )  # the number of the k-gram that ends at each place, at first for k = 0
    contexts = (
        ngram_ids,
        1,
    )  # of each k-gram the number of its first k-1 tokens, and how many such numbers there are
    for _ in range(order):
        keys, first_index, longer_ids = np.unique(
            ngram_keys(ngram_ids, stream, vocab_size), return_index=True, return_inverse=True
        )
        counts = np.bincount(longer_ids[in_vocabulary], minlength=len(keys))
        if tables:  # each longer one, seen where it first occurs, is one more token before a shorter one
            n_predecessors = np.bincount(ngram_ids[first_index[counts > 0]], minlength=len(tables[-1].keys))
            tables[-1] = replace(tables[-1], lower=DiscountedCounts.from_counts(n_predecessors, *contexts))
        contexts = keys // (vocab_size + 1), len(tables[-1].keys) if tables else 1
        tables.append(NGramTable(keys, DiscountedCounts.from_counts(counts, *contexts)))
        ngram_ids = longer_ids
    return tables


def estimate_discounts(counts: IntArray) -> tuple[float, float, float]:
    """What is taken from k-grams counted once, twice, and more often."""
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
    """The model over the tokens of a task, judged as `generate` is: on every token of a text but the first."""

    def __init__(self, model: NGramModel, tokenize: Tokenize, *, lossless: bool, eos_id: int | None = EOS) -> None:
        self.model, self.tokenize, self.lossless, self.eos_id = model, tokenize, lossless, eos_id

    @classmethod
    def fit(
        cls, train: Iterable[TextChunk], tokenize: Tokenize, vocab_size: int,
        *, lossless: bool = False, order: int = 0, eos_id: int | None = EOS,
    ) -> Self:  # fmt: skip
        model = NGramModel.fit(token_stream(train, tokenize, eos_id), vocab_size, order=order)
        return cls(model, tokenize, lossless=lossless, eos_id=eos_id)

    def evaluate(self, test: Sequence[TextChunk]) -> Metrics:
        stream = token_stream(test, self.tokenize, self.eos_id)
        if len(stream) < 2:
            raise BaselineError("fewer than two tokens to judge by")
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
    """One long row of tokens, an end token after each document, as `generate` reads it."""
    suffix = [] if eos_id is None else [eos_id]
    chunks, n_tokens = [np.zeros(0, np.int64)], 0
    for piece in pieces:
        chunks.append(np.array([*tokenize(piece.text), *(suffix * piece.ends_document)], np.int64))
        n_tokens += len(chunks[-1])
        if n_tokens > MAX_TOKENS:
            raise BaselineError(f"more than {MAX_TOKENS:,} tokens are too many to count")
    return np.concatenate(chunks)
