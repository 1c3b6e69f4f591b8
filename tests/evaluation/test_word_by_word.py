"""Translation baselines against sacreBLEU and against IBM model 1 written from its definition."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import sacrebleu

from triform.data.readers import TextPair
from triform.evaluation.baselines import BaselineError, translation
from triform.evaluation.baselines.translation import (
    EM_ITERATIONS,
    CopyBaseline,
    WordByWordBaseline,
    encode_words,
    fit_ibm_model_1,
)

WORDS = {"the": "das", "house": "Haus", "book": "Buch", "a": "ein", "big": "grosses", "green": "gruen", "is": "ist"}


def make_pairs(n: int, seed: int = 0) -> list[TextPair]:
    """Sentences of a toy language in which each word has one translation."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(list(WORDS), rng.integers(1, 6)).tolist() for _ in range(n)]
    return [
        TextPair(" ".join(row) + ".", " ".join(WORDS[word] for word in row) + ".", line)
        for line, row in enumerate(rows, 1)
    ]


def reference_ibm_model_1(
    sentences: list[tuple[list[str], list[str]]], iterations: int
) -> dict[tuple[str, str], float]:
    """t(target | source) by counting every link of every pair in turn; "" is the empty word."""
    probs: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in sentences:
            for word in target:
                total = sum(probs[source_word, word] for source_word in ["", *source])
                for source_word in ["", *source]:
                    counts[source_word, word] += probs[source_word, word] / total
                    totals[source_word] += probs[source_word, word] / total
        probs = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    return dict(probs)


def test_expectation_maximisation_is_that_of_a_slow_model() -> None:
    sentences = [(pair.source[:-1].split(), pair.target[:-1].split()) for pair in make_pairs(25)]
    sentences += [([], ["Haus"]), (["house"], []), (["the", "the"], ["das"])]
    sources, source_words = encode_words(source for source, _ in sentences)
    targets, target_words = encode_words(target for _, target in sentences)
    source, target, probs = fit_ibm_model_1(sources, targets)
    source_names = ["", *source_words]
    table = {
        (source_names[source_id], target_words[target_id]): prob
        for source_id, target_id, prob in zip(source, target, probs, strict=True)
    }
    assert table == pytest.approx(reference_ibm_model_1(sentences, EM_ITERATIONS))


def test_each_word_becomes_the_one_it_always_stood_beside() -> None:
    fitted = WordByWordBaseline.fit(make_pairs(200))
    assert fitted.translations == WORDS
    assert fitted.predict(["the green  whale, is\ta house!", ""]) == ["das gruen  whale, ist\tein Haus!", ""]
    metrics = fitted.evaluate(make_pairs(20, seed=1))
    assert metrics["bleu"] == pytest.approx(100)
    assert (metrics["exact_match"], metrics["pairs"]) == (1, 20)


def test_a_copy_is_scored_as_sacrebleu_scores_the_source() -> None:
    test = [
        TextPair("a big green Haus is here", "ein grosses gruen Haus ist hier", 1),
        TextPair("yes, it is so", "yes, it is so", 2),
    ]
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    metrics = CopyBaseline().evaluate(test)
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(sources, [references]).score)
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(sources, [references]).score)
    assert metrics["exact_match"] == 0.5


def test_of_very_many_pairs_some_from_all_over_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "MAX_LINKS", 2000)
    fitted = WordByWordBaseline.fit(
        [*make_pairs(300), TextPair("rare", "selten", 301), TextPair("last", "letzt", 302)]
    )
    assert set(WORDS) <= set(fitted.translations)
    assert not {"rare", "last"} <= set(fitted.translations)


def test_what_cannot_be_translated_says_why() -> None:
    with pytest.raises(BaselineError, match="contain no words"):
        WordByWordBaseline.fit([TextPair("?", "das", 1)])
    with pytest.raises(BaselineError, match="contain no words"):
        WordByWordBaseline.fit([])
    with pytest.raises(BaselineError, match="no word of the test sources"):
        WordByWordBaseline.fit(make_pairs(20)).evaluate([TextPair("quite unheard of", "unerhört", 1)])
    with pytest.raises(BaselineError, match="there are no pairs to evaluate"):
        CopyBaseline().evaluate([])
