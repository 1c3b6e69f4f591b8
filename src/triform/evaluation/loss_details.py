"""Details of an evaluation of a language model: the loss by length of the context and by frequency of the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LossBucket:
    """The predictions whose context or whose token is in a range from `low` to `high`, both included."""

    low: int
    high: int | None  # None: no limit
    tokens: int
    loss: float  # the mean, in nats per token


@dataclass(frozen=True, kw_only=True)
class LossDetails:
    """Details of an evaluation of a language model. In both lists, the buckets add up to all predictions.

    Attributes:
        tokens: The number of predictions.
        loss: The mean loss.
        by_context: Buckets of the number of tokens that the model has read before the prediction.
        by_frequency: Buckets of how often the predicted token occurs in the training data; empty without counts.
        counted_tokens: The number of training tokens that were counted, from the start of the training data.
        counts_are_complete: Whether these are all of them.
        frequency_note: The reason why there are no counts, or an empty string.
    """

    tokens: int
    loss: float
    by_context: list[LossBucket]
    by_frequency: list[LossBucket]
    counted_tokens: int
    counts_are_complete: bool
    frequency_note: str


@dataclass(frozen=True)
class TokenCounts:
    """How often each token occurs in the training data, or in the first part of a large one."""

    counts: Counts  # (V)
    is_complete: bool


class LossSums:
    """Sums of the loss and numbers of predictions, for each length of the context and for each token.

    Args:
        max_context: The largest number of tokens before a prediction.
        vocab_size: The size of the vocabulary.
    """

    def __init__(self, max_context: int, vocab_size: int) -> None:
        self.by_context: Floats = np.zeros((2, max_context + 1))
        self.by_token: Floats = np.zeros((2, vocab_size))

    def add(self, context: Counts, tokens: Counts, losses: npt.NDArray[np.float32]) -> None:
        """Add predictions: the number of tokens before each, the token to predict, and the loss."""
        for sums, index in ((self.by_context, context), (self.by_token, tokens)):
            sums[0] += np.bincount(index, losses, minlength=sums.shape[1])
            sums[1] += np.bincount(index, minlength=sums.shape[1])

    def to_lists(self) -> list[list[list[float]]]:
        """Return the sums as lists, to be exchanged between processes."""
        return [self.by_context.tolist(), self.by_token.tolist()]

    def add_lists(self, lists: list[list[list[float]]]) -> None:
        """Add the sums of another process."""
        self.by_context += np.array(lists[0])
        self.by_token += np.array(lists[1])


def bucket_losses(sums: Floats, values: Counts, lower_edges: Sequence[int]) -> list[LossBucket]:
    """Return the mean loss of each range of values that has predictions.

    Args:
        sums: The sums of losses and the numbers of predictions: (2, N).
        values: The value of each entry, such as the count of each token: (N).
        lower_edges: The smallest value of each range, ascending; the last range has no end.
    """
    buckets = []
    for low, end in zip(lower_edges, [*lower_edges[1:], None], strict=True):
        selected = (values >= low) & (values < end) if end is not None else values >= low
        total, n_tokens = sums[:, selected].sum(axis=1)
        if n_tokens:
            high = None if end is None else end - 1
            buckets.append(LossBucket(low=low, high=high, tokens=int(n_tokens), loss=float(total / n_tokens)))
    return buckets


def build_loss_details(sums: LossSums, counts: TokenCounts | None, note: str = "") -> LossDetails:
    """Return the details of an evaluation from its sums.

    Args:
        sums: The sums over all predictions.
        counts: The counts of the training tokens, or None if there are none.
        note: The reason why there are no counts.
    """
    total, n_tokens = sums.by_context.sum(axis=1)
    max_context = sums.by_context.shape[1] - 1
    # Ranges of one context length, two, 3 to 4, 5 to 8, and so on. The last one ends at the length of a window.
    context_edges = [1, *(2**power + 1 for power in range(max_context.bit_length()) if 2**power < max_context)]
    by_context = bucket_losses(sums.by_context[:, : max_context + 1], np.arange(max_context + 1), context_edges)
    if by_context and by_context[-1].high is None:
        last = by_context[-1]
        by_context[-1] = LossBucket(low=last.low, high=max_context, tokens=last.tokens, loss=last.loss)
    by_frequency = (
        [] if counts is None else bucket_losses(sums.by_token, counts.counts, _count_edges(counts.counts))
    )
    return LossDetails(
        tokens=int(n_tokens),
        loss=float(total / max(1, n_tokens)),
        by_context=by_context,
        by_frequency=by_frequency,
        counted_tokens=0 if counts is None else int(counts.counts.sum()),
        counts_are_complete=counts is not None and counts.is_complete,
        frequency_note=note,
    )


def _count_edges(counts: Counts) -> list[int]:
    """Return the edges 0, 1, 10, 100, … up to the largest count."""
    return [0, *(10**power for power in range(len(str(int(counts.max(initial=0))))))]
