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

from triform.baselines.unfit import UnfitError
from triform.data.readers import Piece
from triform.metrics import Scores, bits_per_byte, perplexity
from triform.text import EOS

Numbers = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Tokenize = Callable[[str], Sequence[int]]

MOST = 8  # the highest order that is tried
MOST_TOKENS = 10_000_000  # all orders are counted in memory
HELD_OUT = 10  # one part in so many of the training text, its end, chooses the order
FALLBACK = (0.5, 1.0, 1.5)  # discounts where there are too few counts to estimate them from


@dataclass(frozen=True)
class Counts:
    """What an order gives to each k-gram, its discounted share, and leaves in each context to the order below."""

    kept: Shares  # (k-grams + 1); the last, for what was never seen, is 0
    rest: Shares  # (contexts + 1); the last, for contexts never seen, is 1

    @classmethod
    def of(cls, counts: Numbers, context: Numbers, n_contexts: int) -> Self:
        by = np.array([0.0, *discounts(counts)])[np.minimum(counts, 3)]
        total = np.bincount(context, counts, minlength=n_contexts)
        taken = np.bincount(context, by, minlength=n_contexts)
        ends = total == 0  # the last tokens of the text are a context that nothing follows
        taken[ends] = total[ends] = 1
        return cls(kept=np.append((counts - by) / total[context], 0.0), rest=np.append(taken / total, 1.0))

    def mix(self, gram: Numbers, context: Numbers, below: Shares) -> Shares:
        return self.kept[gram] + self.rest[context] * below


@dataclass(frozen=True)
class Level:
    """All k-grams of the training text, sorted, and what they give as the highest order and as a lower one."""

    keys: Numbers
    top: Counts  # of how often each occurs
    lower: Counts | None = None  # of how many different tokens stand before each; none for the highest of all

    def find(self, keys: Numbers) -> Numbers:
        """The number of each k-gram; -1, the place of what was never seen, where it is new."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


class NGram:
    """A model of `order`; lower orders can be asked too, so that one fit tells which is best."""

    def __init__(self, levels: Sequence[Level], vocab_size: int) -> None:
        self.levels, self.vocab_size = levels, vocab_size

    @property
    def order(self) -> int:
        return len(self.levels)

    @classmethod
    def fit(cls, tokens: Sequence[int] | Numbers, vocab_size: int, *, order: int = 0) -> Self:
        """Count a text; without an order, the one that suits the end of the text best when fitted on the rest."""
        stream = checked(tokens, vocab_size)
        cut = len(stream) - len(stream) // HELD_OUT
        if not order and len(stream) - cut < 2:
            order = min(2, len(stream))
        if not order:
            tried = cls.fit(stream[:cut], vocab_size, order=MOST)
            order = int(np.argmin(tried.losses(stream[cut:]))) + 1
        return cls(count_levels(padded(stream, vocab_size, order), vocab_size, order), vocab_size)

    def losses(self, tokens: Sequence[int] | Numbers) -> list[float]:
        """Nats per token, all but the first, for a model of each order up to this one."""
        stream = checked(tokens, self.vocab_size)
        grams = self._grams(padded(stream, self.vocab_size, self.order))
        contexts = [ids[-len(stream) : -1] for ids in grams]  # each token but the first is said after these
        return [float(-np.log(shares).mean()) for shares in self._shares(contexts, stream[1:])]

    def loss(self, tokens: Sequence[int] | Numbers) -> float:
        return self.losses(tokens)[-1]

    def distribution(self, context: Sequence[int]) -> Shares:
        """The share of every token of the vocabulary after a context."""
        grams = self._grams(padded(np.array(context, np.int64), self.vocab_size, self.order))
        last = [np.full(self.vocab_size, ids[-1]) for ids in grams]
        return self._shares(last, np.arange(self.vocab_size))[-1]

    def _grams(self, stream: Numbers) -> list[Numbers]:
        """At each place the number of the k-gram that ends there, for k from 0 to the order less one."""
        grams = [np.zeros(len(stream), np.int64)]
        for level in self.levels[:-1]:
            grams.append(level.find(keys_of(grams[-1], stream, self.vocab_size)))
        return grams

    def _shares(self, contexts: Sequence[Numbers], tokens: Numbers) -> list[Shares]:
        """What a model of each order gives to tokens after contexts; the lowest rests on equal shares."""
        below = np.full(len(tokens), 1 / self.vocab_size)
        found = []
        for level, context in zip(self.levels, contexts, strict=True):
            gram = level.find(context * (self.vocab_size + 1) + tokens)
            found.append(level.top.mix(gram, context, below))
            below = level.lower.mix(gram, context, below) if level.lower else below
        return found


def checked(tokens: Sequence[int] | Numbers, vocab_size: int) -> Numbers:
    stream = np.asarray(tokens, np.int64)
    if not len(stream):
        raise UnfitError("there is no text")
    if stream.min() < 0 or stream.max() >= vocab_size:
        raise UnfitError(f"token {int(stream.max())} is not in the vocabulary of {vocab_size}")
    return stream


def padded(stream: Numbers, vocab_size: int, order: int) -> Numbers:
    """With a token that is in no vocabulary before the first, so that the first too stands after something."""
    return np.concatenate([np.full(order, vocab_size), stream])


def keys_of(shorter: Numbers, stream: Numbers, vocab_size: int) -> Numbers:
    """Numbers for the k-grams that end at each place, given those of the (k-1)-grams."""
    before = np.concatenate([[0], shorter[:-1]])
    return before * (vocab_size + 1) + stream


def count_levels(stream: Numbers, vocab_size: int, order: int) -> list[Level]:
    """The k-grams of every order up to this one; those that end before the text are there but count nothing."""
    real = stream < vocab_size
    levels: list[Level] = []
    ends = np.zeros(len(stream), np.int64)  # the number of the k-gram that ends at each place, at first for k = 0
    contexts = ends, 1  # of each k-gram the number of its first k-1 tokens, and how many such numbers there are
    for _ in range(order):
        keys, first, longer = np.unique(keys_of(ends, stream, vocab_size), return_index=True, return_inverse=True)
        counts = np.bincount(longer[real], minlength=len(keys))
        if levels:  # each longer one, seen where it first occurs, is one more token before a shorter one
            before = np.bincount(ends[first[counts > 0]], minlength=len(levels[-1].keys))
            levels[-1] = replace(levels[-1], lower=Counts.of(before, *contexts))
        contexts = keys // (vocab_size + 1), len(levels[-1].keys) if levels else 1
        levels.append(Level(keys, Counts.of(counts, *contexts)))
        ends = longer
    return levels


def discounts(counts: Numbers) -> tuple[float, float, float]:
    """What is taken from k-grams counted once, twice, and more often."""
    n1, n2, n3, n4 = np.bincount(counts[(counts > 0) & (counts < 5)], minlength=5)[1:5].tolist()
    if not n1 or not n2 or not n3 or not n4:
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 < each <= most for most, each in enumerate(found, 1)) else FALLBACK


class NGramBaseline:
    """The model over the tokens of a task, judged as `generate` is: on every token of a text but the first."""

    def __init__(self, model: NGram, tokenize: Tokenize, *, lossless: bool, end: int | None = EOS) -> None:
        self.model, self.tokenize, self.lossless, self.end = model, tokenize, lossless, end

    @classmethod
    def fit(
        cls, train: Iterable[Piece], tokenize: Tokenize, vocab_size: int,
        *, lossless: bool = False, order: int = 0, end: int | None = EOS,
    ) -> Self:  # fmt: skip
        model = NGram.fit(stream_of(train, tokenize, end), vocab_size, order=order)
        return cls(model, tokenize, lossless=lossless, end=end)

    def score(self, test: Sequence[Piece]) -> Scores:
        stream = stream_of(test, self.tokenize, self.end)
        if len(stream) < 2:
            raise UnfitError("fewer than two tokens to judge by")
        loss, n = self.model.loss(stream), len(stream) - 1
        n_bytes = sum(len(piece.text.encode()) for piece in test)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            **({"bits_per_byte": bits_per_byte(loss * n, n_bytes)} if self.lossless else {}),
            "tokens": n,
            "order": self.model.order,
        }


def stream_of(pieces: Iterable[Piece], tokenize: Tokenize, end: int | None = EOS) -> Numbers:
    """One long row of tokens, an end token after each document, as `generate` reads it."""
    close = [] if end is None else [end]
    rows, total = [np.zeros(0, np.int64)], 0
    for piece in pieces:
        rows.append(np.array([*tokenize(piece.text), *(close * piece.ends)], np.int64))
        total += len(rows[-1])
        if total > MOST_TOKENS:
            raise UnfitError(f"more than {MOST_TOKENS:,} tokens are too many to count")
    return np.concatenate(rows)
