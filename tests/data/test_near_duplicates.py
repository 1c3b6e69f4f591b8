"""Near duplicates: what is found equals what comparing everything with everything finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from triform.data.near_duplicates import (
    HASHES_PER_BAND,
    MAX_NEIGHBOURS,
    MIN_SIMILARITY,
    N_BANDS,
    find_near_pairs,
    split_words,
)


def collect_bigrams(text: str) -> set[tuple[str, str]]:
    text_words = split_words(text)
    return set(pairwise(text_words)) if len(text_words) > 1 else {(word, "") for word in text_words}


def brute_force_pairs(texts: list[str]) -> dict[tuple[int, int], float]:
    """Jaccard similarity of the sets of word pairs of every two texts, plainly."""
    bigram_sets = [collect_bigrams(text) for text in texts]
    pairs = {}
    for first, second in combinations(range(len(texts)), 2):
        similarity = len(bigram_sets[first] & bigram_sets[second]) / max(
            1, len(bigram_sets[first] | bigram_sets[second])
        )
        if similarity >= MIN_SIMILARITY:
            pairs[first, second] = similarity
    return pairs


def find_pairs(texts: list[str]) -> dict[tuple[int, int], float]:
    near_pairs_found = find_near_pairs(texts)
    index_pairs = zip(near_pairs_found.first.tolist(), near_pairs_found.second.tolist(), strict=True)
    return dict(zip(index_pairs, near_pairs_found.similarity.tolist(), strict=True))


def sample_texts(rng: np.random.Generator, n: int) -> list[str]:
    """Texts of 1 to 120 words that come as often as words do, each third one a changed copy of an earlier one."""
    texts: list[list[str]] = []
    for row in range(n):
        if row % 3 == 2:
            changed = list(texts[int(rng.integers(row))])
            for position in rng.integers(0, len(changed), int(rng.integers(0, 6))):
                changed[position] = f"x{rng.integers(1000)}"
            texts.append(changed)
        else:
            texts.append([f"w{number}" for number in rng.zipf(1.3, int(rng.integers(1, 120))) % 5000])
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_found_is_what_brute_force_finds(seed: int) -> None:
    texts = list(dict.fromkeys(sample_texts(np.random.default_rng(seed), 450)))
    expected, actual = brute_force_pairs(texts), find_pairs(texts)
    assert len(expected) > 60
    assert actual.keys() <= expected.keys()  # nothing that is not near
    assert len(actual) >= 0.99 * len(expected)
    for indices, similarity in actual.items():
        assert similarity == pytest.approx(expected[indices])


def test_the_bands_let_hardly_any_pair_slip_through() -> None:
    assert (1 - MIN_SIMILARITY**HASHES_PER_BAND) ** N_BANDS < 1 / 4000


def test_one_word_in_twenty_may_differ_but_not_one_in_ten() -> None:
    original = [f"word{n}" for n in range(20)]
    changed = [*original[:10], "other", *original[11:]]
    assert find_pairs([" ".join(original), " ".join(changed)])
    assert not find_pairs([" ".join(original[5:15]), " ".join(changed[5:15])])


def test_punctuation_makes_no_difference() -> None:
    assert find_pairs(["no, it is good!", "no it is good ..."]) == {(0, 1): 1.0}


def test_texts_shorter_than_a_pair_of_words_are_near_only_when_they_say_the_same() -> None:
    assert find_pairs(["good", "good.", "bad", "", "...", "good good good"]) == {(0, 1): 1.0}


def test_scripts_without_spaces_and_emoji_are_read_character_by_character() -> None:
    long = "今天天气很好我们去公园散步然后回家吃饭看电视睡觉"
    assert split_words("今天good天😀👍🏽") == ["今", "天", "good", "天", "😀", "👍", "🏽"]
    assert split_words("좋은 아침") == ["좋은", "아침"]
    assert find_pairs([long, long + "了", "完全不同的一句话在这里"]).keys() == {(0, 1)}
    assert find_pairs(["😀😀😂", "😂😀"]) == {}


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "?!"], ["one"]])
def test_little_or_nothing_is_near_nothing(texts: list[str]) -> None:
    assert find_pairs(texts) == {}


def test_a_crowd_of_alike_texts_costs_no_square() -> None:
    letter = " ".join(f"word{n}" for n in range(30))
    texts = [f"dear customer {n} {letter}" for n in range(3000)]
    near_pairs_found = find_near_pairs(texts)
    assert len(near_pairs_found.first) <= len(texts) * 2 * MAX_NEIGHBOURS * N_BANDS
    # And each is known to be near an earlier one.
    assert set(near_pairs_found.second.tolist()) == set(range(1, 3000))


def test_a_text_of_a_megabyte_is_compared_whole() -> None:
    rng = np.random.default_rng(3)
    long = [f"w{number}" for number in rng.integers(0, 30_000, 150_000)]
    other = [f"w{number}" for number in rng.integers(0, 30_000, 150_000)]
    cut = long[: int(0.9 * len(long))]
    assert find_pairs([" ".join(long), " ".join(other), " ".join(cut)]).keys() == {(0, 2)}
