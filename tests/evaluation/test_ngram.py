"""Kneser-Ney against values worked by hand and against a slow model written from the definition."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triform.data.readers import TextChunk
from triform.evaluation.baselines import BaselineError
from triform.evaluation.baselines.ngram import (
    DEFAULT_DISCOUNTS,
    MAX_ORDER,
    NGramBaseline,
    NGramModel,
    estimate_discounts,
    pad_start,
)
from triform.text import EOS

START = -1


def reference_model(tokens: Sequence[int], vocab_size: int, order: int) -> Callable[[int, Sequence[int]], float]:
    """p(token | context), from Chen and Goodman's formulas, one n-gram at a time."""
    text = [START] * order + list(tokens)
    tables = []
    for k in range(1, order + 1):
        positions = defaultdict(list)
        for end in range(order, len(text)):
            positions[tuple(text[end - k + 1 : end + 1])].append(end)
        if k == order:
            counts = {gram: len(ends) for gram, ends in positions.items()}
        else:
            counts = {gram: len({text[end - k] for end in ends}) for gram, ends in positions.items()}
        counts_of_counts = [sum(count == times for count in counts.values()) for times in range(5)]
        discounts_by_count = DEFAULT_DISCOUNTS
        if all(counts_of_counts[1:]):
            y = counts_of_counts[1] / (counts_of_counts[1] + 2 * counts_of_counts[2])
            discounts_by_count = tuple(
                times - (times + 1) * y * counts_of_counts[times + 1] / counts_of_counts[times]
                for times in (1, 2, 3)
            )
            discounts_by_count = (
                discounts_by_count
                if all(0 < discount <= upper for upper, discount in enumerate(discounts_by_count, 1))
                else DEFAULT_DISCOUNTS
            )
        tables.append((counts, discounts_by_count))

    def probability(token: int, context: Sequence[int], k: int) -> float:
        if k == 0:
            return 1 / vocab_size
        counts, discounts_by_count = tables[k - 1]
        prefix = tuple(context[len(context) - k + 1 :])
        followers = [count for gram, count in counts.items() if gram[:-1] == prefix]
        lower_prob = probability(token, context, k - 1)
        if not followers:
            return lower_prob
        count_of_gram = counts.get((*prefix, token), 0)
        discounted = count_of_gram - discounts_by_count[min(count_of_gram, 3) - 1] if count_of_gram else 0
        backoff_mass = sum(discounts_by_count[min(count, 3) - 1] for count in followers)
        return (discounted + backoff_mass * lower_prob) / sum(followers)

    return lambda token, context: probability(token, [START] * order + list(context), order)


def distribution(model: NGramModel, context: list[int]) -> npt.NDArray[np.float64]:
    """Return the probability of every token of the vocabulary after a context."""
    ngram_ids = model._ngram_ids(pad_start(np.array(context, np.int64), model.vocab_size, model.order))
    contexts = [np.full(model.vocab_size, ids[-1]) for ids in ngram_ids]
    return model._probabilities(contexts, np.arange(model.vocab_size))[-1]


def random_tokens(n: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Tokens that depend on the one before, so that orders differ."""
    rng = np.random.default_rng(seed)
    tokens = [0]
    for _ in range(n - 1):
        tokens.append(int((tokens[-1] * 3 + rng.integers(0, 1 + vocab_size // 2)) % vocab_size))
    return tokens


def test_a_text_of_six_tokens_worked_by_hand() -> None:
    a, b, c = range(3)
    model = NGramModel.fit([a, b, a, b, a, c], 3, order=2)
    # Too few counts to estimate discounts, so 1/2 from what occurs once and 1 from what occurs twice. Of different
    # tokens before: a has the start and b, so 2; b and c have a, so 1. After a: b twice, c once.
    unigram = {a: (2 - 1) / 4 + 2 / 4 / 3, b: 0.5 / 4 + 2 / 4 / 3, c: 0.5 / 4 + 2 / 4 / 3}
    expected = [0.5 * unigram[a], 1 / 3 + 0.5 * unigram[b], 0.5 / 3 + 0.5 * unigram[c]]
    assert distribution(model, [a]) == pytest.approx(expected)
    assert distribution(model, [c]) == pytest.approx(list(unigram.values()))  # nothing ever followed c
    assert model.loss([c, a, b]) == pytest.approx(-(math.log(unigram[a]) + math.log(expected[b])) / 2)


def test_discounts_are_chen_and_goodmans() -> None:
    counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 1 + [9, 0, 0])
    y = 8 / (8 + 2 * 4)
    assert estimate_discounts(counts) == pytest.approx((1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2))
    assert estimate_discounts(np.array([1, 1, 2, 7])) == DEFAULT_DISCOUNTS
    # They would be below nothing.
    assert estimate_discounts(np.array([1] * 5 + [2] * 1 + [3] * 9 + [4] * 40)) == DEFAULT_DISCOUNTS


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("vocab_size", [3, 9, 40])
def test_every_share_is_that_of_a_slow_model(order: int, vocab_size: int) -> None:
    train, test_tokens = random_tokens(300, vocab_size), random_tokens(25, vocab_size, seed=1)
    model, reference = NGramModel.fit(train, vocab_size, order=order), reference_model(train, vocab_size, order)
    for position in range(len(test_tokens)):
        expected = [reference(token, test_tokens[:position]) for token in range(vocab_size)]
        assert distribution(model, test_tokens[:position]) == pytest.approx(expected)
    nats = [
        -math.log(reference(token, test_tokens[:position]))
        for position, token in enumerate(test_tokens)
        if position
    ]
    assert model.loss(test_tokens) == pytest.approx(sum(nats) / (len(test_tokens) - 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), max_size=8),
    st.integers(1, 6),
)
def test_the_shares_after_any_context_are_positive_and_sum_to_one(
    train: list[int], context: list[int], order: int
) -> None:
    model = NGramModel.fit(train, 6, order=order)
    train_prefixes = [train[:end] for end in range(len(train) + 1)]
    for prefix in [context, *train_prefixes]:
        probs = distribution(model, prefix)
        assert probs.sum() == pytest.approx(1)
        assert (probs > 0).all()


def test_one_fit_tells_the_loss_of_every_lower_order() -> None:
    train, test_tokens = random_tokens(2000, 12), random_tokens(200, 12, seed=1)
    losses = NGramModel.fit(train, 12, order=4).losses(test_tokens)
    assert losses == pytest.approx(
        [NGramModel.fit(train, 12, order=order).loss(test_tokens) for order in (1, 2, 3, 4)]
    )


def test_the_order_is_the_one_that_suits_the_end_of_the_text() -> None:
    bigram_text = random_tokens(4000, 12)  # each token depends on the one before and on no other
    assert NGramModel.fit(bigram_text, 12).order == 2
    rng = np.random.default_rng(0)
    assert NGramModel.fit(rng.integers(0, 12, 4000), 12).order == 1
    assert NGramModel.fit(np.tile(rng.integers(0, 3, 400), 10), 3).order == MAX_ORDER
    assert NGramModel.fit([1, 0], 2).order == 2
    assert NGramModel.fit([1], 2).order == 1


def test_a_text_is_judged_on_every_token_but_the_first_an_end_after_each_document() -> None:
    pieces = [TextChunk("ab", True, 1), TextChunk("ba", False, 2), TextChunk("b", False, 2)]
    letter_ids = {"a": 4, "b": 5}
    baseline = NGramBaseline.fit(
        pieces, lambda text: [letter_ids[letter] for letter in text], 6, order=2, lossless=True
    )
    metrics = baseline.evaluate(pieces)
    stream = [4, 5, EOS, 5, 4, 5]
    assert metrics["loss"] == pytest.approx(NGramModel.fit(stream, 6, order=2).loss(stream))
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] * 5 / math.log(2) / 5)
    assert (metrics["tokens"], metrics["order"]) == (5, 2)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(BaselineError, match="the text is empty"):
        NGramModel.fit([], 4)
    with pytest.raises(BaselineError, match="token 4 is outside the vocabulary of 4 tokens"):
        NGramModel.fit([1, 4], 4)
    baseline = NGramBaseline.fit([TextChunk("ab", False, 1)], lambda text: [0] * len(text), 1)
    with pytest.raises(BaselineError, match="fewer than two tokens"):
        baseline.evaluate([TextChunk("a", False, 1)])
