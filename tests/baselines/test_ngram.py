"""Kneser-Ney against values worked by hand and against a slow model written from the definition."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triform.baselines import UnfitError
from triform.baselines.ngram import FALLBACK, MOST, NGram, NGramBaseline, discounts
from triform.data.readers import Piece
from triform.text import EOS

START = -1


def slow_model(tokens: Sequence[int], vocab_size: int, order: int) -> Callable[[int, Sequence[int]], float]:
    """p(token | context), from Chen and Goodman's formulas, one n-gram at a time."""
    text = [START] * order + list(tokens)
    tables = []
    for k in range(1, order + 1):
        places = defaultdict(list)
        for end in range(order, len(text)):
            places[tuple(text[end - k + 1 : end + 1])].append(end)
        if k == order:
            counts = {gram: len(found) for gram, found in places.items()}
        else:
            counts = {gram: len({text[end - k] for end in found}) for gram, found in places.items()}
        n = [sum(count == times for count in counts.values()) for times in range(5)]
        taken = FALLBACK
        if all(n[1:]):
            y = n[1] / (n[1] + 2 * n[2])
            taken = tuple(times - (times + 1) * y * n[times + 1] / n[times] for times in (1, 2, 3))
            taken = taken if all(0 <= d <= m for m, d in enumerate(taken, 1)) else FALLBACK
        tables.append((counts, taken))

    def share(token: int, context: Sequence[int], k: int) -> float:
        if k == 0:
            return 1 / vocab_size
        counts, taken = tables[k - 1]
        before = tuple(context[len(context) - k + 1 :])
        followers = [count for gram, count in counts.items() if gram[:-1] == before]
        below = share(token, context, k - 1)
        if not followers:
            return below
        own = counts.get((*before, token), 0)
        kept = own - taken[min(own, 3) - 1] if own else 0
        rest = sum(taken[min(count, 3) - 1] for count in followers)
        return (kept + rest * below) / sum(followers)

    return lambda token, context: share(token, [START] * order + list(context), order)


def text_of(n: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Tokens that depend on the one before, so that orders differ."""
    rng = np.random.default_rng(seed)
    tokens = [0]
    for _ in range(n - 1):
        tokens.append(int((tokens[-1] * 3 + rng.integers(0, 1 + vocab_size // 2)) % vocab_size))
    return tokens


def test_a_text_of_six_tokens_worked_by_hand() -> None:
    a, b, c = range(3)
    model = NGram.fit([a, b, a, b, a, c], 3, order=2)
    # Too few counts to estimate discounts, so 1/2 from what occurs once and 1 from what occurs twice. Of different
    # tokens before: a has the start and b, so 2; b and c have a, so 1. After a: b twice, c once.
    alone = {a: (2 - 1) / 4 + 2 / 4 / 3, b: 0.5 / 4 + 2 / 4 / 3, c: 0.5 / 4 + 2 / 4 / 3}
    wanted = [0.5 * alone[a], 1 / 3 + 0.5 * alone[b], 0.5 / 3 + 0.5 * alone[c]]
    assert model.distribution([a]) == pytest.approx(wanted)
    assert model.distribution([c]) == pytest.approx(list(alone.values()))  # nothing ever followed c
    assert model.loss([c, a, b]) == pytest.approx(-(math.log(alone[a]) + math.log(wanted[b])) / 2)


def test_discounts_are_chen_and_goodmans() -> None:
    counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 1 + [9, 0, 0])
    y = 8 / (8 + 2 * 4)
    assert discounts(counts) == pytest.approx((1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2))
    assert discounts(np.array([1, 1, 2, 7])) == FALLBACK
    assert discounts(np.array([1] * 5 + [2] * 1 + [3] * 9 + [4] * 40)) == FALLBACK  # they would be below nothing


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("vocab_size", [3, 9, 40])
def test_every_share_is_that_of_a_slow_model(order: int, vocab_size: int) -> None:
    train, other = text_of(300, vocab_size), text_of(25, vocab_size, seed=1)
    model, wanted = NGram.fit(train, vocab_size, order=order), slow_model(train, vocab_size, order)
    for place in range(len(other)):
        slow = [wanted(token, other[:place]) for token in range(vocab_size)]
        assert model.distribution(other[:place]) == pytest.approx(slow)
    nats = [-math.log(wanted(token, other[:place])) for place, token in enumerate(other) if place]
    assert model.loss(other) == pytest.approx(sum(nats) / (len(other) - 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), max_size=8),
    st.integers(1, 6),
)
def test_the_shares_after_any_context_are_positive_and_sum_to_one(
    train: list[int], context: list[int], order: int
) -> None:
    model = NGram.fit(train, 6, order=order)
    seen = [train[:end] for end in range(len(train) + 1)]
    for before in [context, *seen]:
        shares = model.distribution(before)
        assert shares.sum() == pytest.approx(1)
        assert (shares > 0).all()


def test_one_fit_tells_the_loss_of_every_lower_order() -> None:
    train, other = text_of(2000, 12), text_of(200, 12, seed=1)
    found = NGram.fit(train, 12, order=4).losses(other)
    assert found == pytest.approx([NGram.fit(train, 12, order=order).loss(other) for order in (1, 2, 3, 4)])


def test_the_order_is_the_one_that_suits_the_end_of_the_text() -> None:
    pairs = text_of(4000, 12)  # each token depends on the one before and on no other
    assert NGram.fit(pairs, 12).order == 2
    rng = np.random.default_rng(0)
    assert NGram.fit(rng.integers(0, 12, 4000), 12).order == 1
    assert NGram.fit(np.tile(rng.integers(0, 3, 400), 10), 3).order == MOST
    assert NGram.fit([1, 0], 2).order == 2
    assert NGram.fit([1], 2).order == 1


def test_a_text_is_judged_on_every_token_but_the_first_an_end_after_each_document() -> None:
    pieces = [Piece("ab", True, 1), Piece("ba", False, 2), Piece("b", False, 2)]
    numbers = {"a": 4, "b": 5}
    baseline = NGramBaseline.fit(
        pieces, lambda text: [numbers[letter] for letter in text], 6, order=2, lossless=True
    )
    found = baseline.score(pieces)
    stream = [4, 5, EOS, 5, 4, 5]
    assert found["loss"] == pytest.approx(NGram.fit(stream, 6, order=2).loss(stream))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 5 / math.log(2) / 5)
    assert (found["tokens"], found["order"]) == (5, 2)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(UnfitError, match="there is no text"):
        NGram.fit([], 4)
    with pytest.raises(UnfitError, match="token 4 is not in the vocabulary of 4"):
        NGram.fit([1, 4], 4)
    fitted = NGramBaseline.fit([Piece("ab", False, 1)], lambda text: [0] * len(text), 1)
    with pytest.raises(UnfitError, match="fewer than two tokens"):
        fitted.score([Piece("a", False, 1)])
