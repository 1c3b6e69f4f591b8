"""Near duplicates: what is found equals what comparing everything with everything finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from triform.data.near import ALIKE, BANDS, NEIGHBOURS, PER_BAND, near_pairs, words


def pairs_of(text: str) -> set[tuple[str, str]]:
    found = words(text)
    return set(pairwise(found)) if len(found) > 1 else {(word, "") for word in found}


def brute(texts: list[str]) -> dict[tuple[int, int], float]:
    """Jaccard similarity of the sets of word pairs of every two texts, plainly."""
    sets = [pairs_of(text) for text in texts]
    found = {}
    for one, other in combinations(range(len(texts)), 2):
        alike = len(sets[one] & sets[other]) / max(1, len(sets[one] | sets[other]))
        if alike >= ALIKE:
            found[one, other] = alike
    return found


def found_in(texts: list[str]) -> dict[tuple[int, int], float]:
    near = near_pairs(texts)
    places = zip(near.first.tolist(), near.second.tolist(), strict=True)
    return dict(zip(places, near.likeness.tolist(), strict=True))


def sample(rng: np.random.Generator, n: int) -> list[str]:
    """Texts of 1 to 120 words that come as often as words do, each third one a changed copy of an earlier one."""
    texts: list[list[str]] = []
    for row in range(n):
        if row % 3 == 2:
            changed = list(texts[int(rng.integers(row))])
            for place in rng.integers(0, len(changed), int(rng.integers(0, 6))):
                changed[place] = f"x{rng.integers(1000)}"
            texts.append(changed)
        else:
            texts.append([f"w{number}" for number in rng.zipf(1.3, int(rng.integers(1, 120))) % 5000])
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_found_is_what_brute_force_finds(seed: int) -> None:
    texts = list(dict.fromkeys(sample(np.random.default_rng(seed), 450)))
    truth, found = brute(texts), found_in(texts)
    assert len(truth) > 60
    assert found.keys() <= truth.keys()  # nothing that is not near
    assert len(found) >= 0.99 * len(truth)
    for places, alike in found.items():
        assert alike == pytest.approx(truth[places])


def test_the_bands_let_hardly_any_pair_slip_through() -> None:
    assert (1 - ALIKE**PER_BAND) ** BANDS < 1 / 4000


def test_one_word_in_twenty_may_differ_but_not_one_in_ten() -> None:
    words_of = [f"word{n}" for n in range(20)]
    changed = [*words_of[:10], "other", *words_of[11:]]
    assert found_in([" ".join(words_of), " ".join(changed)])
    assert not found_in([" ".join(words_of[5:15]), " ".join(changed[5:15])])


def test_punctuation_makes_no_difference() -> None:
    assert found_in(["no, it is good!", "no it is good ..."]) == {(0, 1): 1.0}


def test_texts_shorter_than_a_pair_of_words_are_near_only_when_they_say_the_same() -> None:
    assert found_in(["good", "good.", "bad", "", "...", "good good good"]) == {(0, 1): 1.0}


def test_scripts_without_spaces_and_emoji_are_read_character_by_character() -> None:
    long = "今天天气很好我们去公园散步然后回家吃饭看电视睡觉"
    assert words("今天good天😀👍🏽") == ["今", "天", "good", "天", "😀", "👍", "🏽"]
    assert words("좋은 아침") == ["좋은", "아침"]
    assert found_in([long, long + "了", "完全不同的一句话在这里"]).keys() == {(0, 1)}
    assert found_in(["😀😀😂", "😂😀"]) == {}


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "?!"], ["one"]])
def test_little_or_nothing_is_near_nothing(texts: list[str]) -> None:
    assert found_in(texts) == {}


def test_a_crowd_of_alike_texts_costs_no_square() -> None:
    letter = " ".join(f"word{n}" for n in range(30))
    texts = [f"dear customer {n} {letter}" for n in range(3000)]
    near = near_pairs(texts)
    assert len(near.first) <= len(texts) * 2 * NEIGHBOURS * BANDS
    assert set(near.second.tolist()) == set(range(1, 3000))  # and each is known to be near an earlier one


def test_a_text_of_a_megabyte_is_compared_whole() -> None:
    rng = np.random.default_rng(3)
    long = [f"w{number}" for number in rng.integers(0, 30_000, 150_000)]
    other = [f"w{number}" for number in rng.integers(0, 30_000, 150_000)]
    cut = long[: int(0.9 * len(long))]
    assert found_in([" ".join(long), " ".join(other), " ".join(cut)]).keys() == {(0, 2)}
