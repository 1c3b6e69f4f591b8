"""Translation baselines against sacreBLEU and against IBM model 1 written from its definition."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import sacrebleu

from triform.baselines import UnfitError, translation
from triform.baselines.translation import ROUNDS, Copy, Wordwise, model_1, numbered
from triform.data.readers import Pair

WORDS = {"the": "das", "house": "Haus", "book": "Buch", "a": "ein", "big": "grosses", "green": "gruen", "is": "ist"}


def pairs(n: int, seed: int = 0) -> list[Pair]:
    """Sentences of a toy language in which each word has one translation."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(list(WORDS), rng.integers(1, 6)).tolist() for _ in range(n)]
    return [
        Pair(" ".join(row) + ".", " ".join(WORDS[word] for word in row) + ".", line)
        for line, row in enumerate(rows, 1)
    ]


def slow_model_1(sentences: list[tuple[list[str], list[str]]], rounds: int) -> dict[tuple[str, str], float]:
    """t(target | source) by counting every link of every pair in turn; "" is the empty word."""
    shares: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in sentences:
            for word in target:
                whole = sum(shares[each, word] for each in ["", *source])
                for each in ["", *source]:
                    counts[each, word] += shares[each, word] / whole
                    totals[each] += shares[each, word] / whole
        shares = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    return dict(shares)


def test_expectation_maximisation_is_that_of_a_slow_model() -> None:
    sentences = [(pair.source[:-1].split(), pair.target[:-1].split()) for pair in pairs(25)]
    sentences += [([], ["Haus"]), (["house"], []), (["the", "the"], ["das"])]
    sources, source_words = numbered(source for source, _ in sentences)
    targets, target_words = numbered(target for _, target in sentences)
    source, target, shares = model_1(sources, targets)
    named = ["", *source_words]
    found = {(named[s], target_words[t]): share for s, t, share in zip(source, target, shares, strict=True)}
    assert found == pytest.approx(slow_model_1(sentences, ROUNDS))


def test_each_word_becomes_the_one_it_always_stood_beside() -> None:
    fitted = Wordwise.fit(pairs(200))
    assert fitted.becomes == WORDS
    assert fitted.predict(["the green  whale, is\ta house!", ""]) == ["das gruen  whale, ist\tein Haus!", ""]
    found = fitted.score(pairs(20, seed=1))
    assert found["bleu"] == pytest.approx(100)
    assert (found["exact_match"], found["pairs"]) == (1, 20)


def test_a_copy_is_scored_as_sacrebleu_scores_the_source() -> None:
    test = [
        Pair("a big green Haus is here", "ein grosses gruen Haus ist hier", 1),
        Pair("yes, it is so", "yes, it is so", 2),
    ]
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    found = Copy().score(test)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(sources, [references]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(sources, [references]).score)
    assert found["exact_match"] == 0.5


def test_of_very_many_pairs_some_from_all_over_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "MOST_LINKS", 2000)
    fitted = Wordwise.fit([*pairs(300), Pair("rare", "selten", 301), Pair("last", "letzt", 302)])
    assert set(WORDS) <= set(fitted.becomes)
    assert not {"rare", "last"} <= set(fitted.becomes)


def test_what_cannot_be_translated_says_why() -> None:
    with pytest.raises(UnfitError, match="no words on one side"):
        Wordwise.fit([Pair("?", "das", 1)])
    with pytest.raises(UnfitError, match="no words on one side"):
        Wordwise.fit([])
    with pytest.raises(UnfitError, match="no word of the sources was seen"):
        Wordwise.fit(pairs(20)).score([Pair("quite unheard of", "unerhört", 1)])
    with pytest.raises(UnfitError, match="no pairs to judge by"):
        Copy().score([])
