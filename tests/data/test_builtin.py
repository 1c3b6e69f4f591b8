"""The built-in sets: splits that do not leak, labels and French checked by hand."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import cache

import pytest

from triform.data import builtin
from triform.data.builtin.numbers import date_pair, number_pair, time_pair
from triform.data.builtin.reviews import (
    CONTRAST_PATTERNS,
    DEGREE_PATTERNS,
    FRAME_PATTERNS,
    IRONY_PATTERNS,
    OUTCOME_PATTERNS,
    Phrase,
    apply_pattern,
    build_agreement,
    build_claim,
    build_contrast,
    build_expectation,
)
from triform.data.builtin.stories import NUMBERS, SPLIT_SIZES, WOMEN
from triform.errors import DataError

SPLITS = ("train", "valid", "test")
numbers, reviews, sentences, stories = map(
    cache, (builtin.numbers, builtin.reviews, builtin.sentences, builtin.stories)
)  # many tests read them


def collect_words(texts: list[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[\w'-]+|[^\w\s]", text)}


# ------------------------------------------------------------------------------------------ every set


def test_every_task_has_a_built_in_set() -> None:
    assert set(builtin.DEFAULT_SETS) == {"classify", "generate", "translate"}
    for name in builtin.DEFAULT_SETS.values():
        assert all(getattr(builtin, name)(split) for split in builtin.SPLITS)


def test_the_public_names_are_sorted() -> None:
    assert builtin.__all__ == sorted(builtin.__all__)


@pytest.mark.parametrize("name", ["reviews", "numbers", "sentences", "stories"])
@pytest.mark.parametrize("split", SPLITS)
def test_asking_twice_gives_the_same(name: str, split: str) -> None:
    assert getattr(builtin, name)(split) == getattr(builtin, name)(split)


@pytest.mark.parametrize("load", [reviews, numbers, sentences, stories])
def test_an_unknown_split_is_named_with_the_known_ones(load: Callable[[str], object]) -> None:
    with pytest.raises(DataError, match=r"no split 'dev'.*train, valid, test"):
        load("dev")


def test_another_process_makes_the_same_text() -> None:
    """Strings hash differently in every process: nothing may depend on it."""
    code = (
        "import sys; from triform.data.builtin import numbers, reviews, stories;"
        "print(ascii((reviews('test'), numbers('test'), stories('test'))))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ascii((reviews("test"), numbers("test"), stories("test")))


SHA256 = {
    "numbers": {
        "train": "91258e4f7a7f6f926b9f87ea8f36185caa24d6def9ab324f9892680c85238763",
        "valid": "d4944ab61efde7dca757271360a9df22627f17346ff1477f14139dceab7530a2",
        "test": "dee1d668b88a5daf678dc487336cec6f4638429a5041766d73036da7121f36a3",
    },
    "reviews": {
        "train": "665f062628b5bf259c74c82c8af786d89e9738211f17502294a3e84bd60c1e06",
        "valid": "b63c91d4129bf6c607ead46eb03c66025b8133fd4e75edac9c24b0fe20b603e0",
        "test": "a5263dec2ab20810bf6c585f2c85191520c73cbb15af197ef821b2ddb06d705a",
    },
    "sentences": {
        "train": "f23dadb95538e80a90b65a21e860d448d5e852300fb93cd0ee67aa2efabd51fb",
        "valid": "651fceb36a530933787c6eb6a4f1fe5f7a76a39caa4badbc2787d21c9ed26ecc",
        "test": "956e175c2f9bd0708d2ca757dc461ef5fb481d16bb5cc5bc1161f8f390a098b7",
    },
    "stories": {
        "train": "9722b5327c35f70a840f9a25744cba27481fa957233dfc44eb26b90cecca3532",
        "valid": "900596fc151885bc90c20679a15d7ebae2a20cf3b36baffb97501179e76e5ca4",
        "test": "fdfb8fa8e2faafa5ba9f20c0d34abdd1b9aa15f6adc7f7fe7c5ccf34aca4780b",
    },
}


@pytest.mark.parametrize("name", SHA256)
def test_every_machine_and_every_python_makes_the_same_text(name: str) -> None:
    texts = {split: json.dumps(getattr(builtin, name)(split), ensure_ascii=False) for split in SPLITS}
    assert {split: hashlib.sha256(text.encode()).hexdigest() for split, text in texts.items()} == SHA256[name]


def test_importing_the_sets_does_no_work() -> None:
    """No text is made or read, and no library is loaded, before a split is asked for."""
    code = (  # without `seed` any generator made now would fail
        "import random, sys; random.Random.seed = None; import triform.data.builtin;"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------ sentences


def test_the_pronoun_of_a_sentence_is_that_of_the_name_and_splits_share_no_line() -> None:
    splits = [sentences(split).splitlines() for split in SPLITS]
    assert [len(set(lines)) for lines in splits] == [4000, 300, 300]
    assert len(set().union(*splits)) == 4600
    for line in splits[0]:
        name, pronoun = re.match(r"(\w+) found an? .*\. (She|He) (?:took|gave|put) it ", line).groups()  # type: ignore[union-attr]
        assert (pronoun == "She") == (name in WOMEN)


# -------------------------------------------------------------------------------------------- reviews

POSITIVE = {
    *("good", "great", "excellent", "wonderful", "superb", "lovely", "impressive", "brilliant", "fine"),
    *("delightful", "memorable", "charming", "moving", "clever", "reliable", "solid"),
}
NEGATIVE = {
    *("bad", "awful", "terrible", "dreadful", "horrible", "poor", "disappointing", "mediocre", "lousy"),
    *("miserable", "overpriced", "careless", "boring", "silly", "faulty", "shoddy"),
}
FLIP_PATTERN = re.compile(
    r"was not\b|was never|would never|nobody|is not true|hardly|far from|anything but|was wrong"
    r"|as if|yeah, right|for nothing|nothing of the kind",
    re.IGNORECASE,
)


def classify_by_rules(text: str) -> str:
    """Judge a review by rules written apart from the grammar: find the main clause, count the flips in it."""
    text = text.replace("anything but", "hardly").replace("Oh great, ", "")
    main_clauses = (
        r"(?:Although|Even though) [^,]*, ([^.]*)",
        r"([^.]*), (?:although|even though) ",
        r"(?:, but|, yet|Still,) (the [^.]*)",
        r"(.*?)(?:, and the |\. What is more)",  # both halves agree: one is enough
        r"(.*)",
    )
    main_clause = next(match[1] for pattern in main_clauses if (match := re.search(pattern, text)))
    (word,) = [word for word in re.findall(r"\w+", main_clause) if word in POSITIVE | NEGATIVE]
    sign = (1 if word in POSITIVE else -1) * (-1) ** len(FLIP_PATTERN.findall(main_clause))
    return "positive" if sign > 0 else "negative"


@pytest.mark.parametrize("split", SPLITS)
def test_a_reader_who_knows_the_rules_agrees_with_every_label(split: str) -> None:
    assert [(text, label) for text, label in reviews(split) if classify_by_rules(text) != label] == []


def test_no_test_review_was_seen_in_training() -> None:
    texts = {split: [text for text, _ in reviews(split)] for split in SPLITS}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values()))


@pytest.mark.parametrize(("split", "size"), [("train", 10000), ("valid", 1000), ("test", 1000)])
def test_half_of_the_reviews_praise(split: str, size: int) -> None:
    assert Counter(label for _, label in reviews(split)) == {"positive": size // 2, "negative": size // 2}


@pytest.mark.parametrize("load", [reviews, numbers])
def test_every_word_to_be_tested_was_seen_in_training(load: Callable[[str], list[tuple[str, str]]]) -> None:
    training_words = collect_words([text for row in load("train") for text in row])
    for split in ("valid", "test"):
        assert collect_words([text for row in load(split) for text in row]) <= training_words


def test_reviews_look_like_reviews() -> None:
    for text, _ in reviews("train"):
        assert 6 <= len(text.split()) <= 30
        assert text[0].isupper()
        assert text[-1] in ".!?"
        assert "  " not in text


GOOD_PHRASE, BAD_PHRASE = Phrase(text="good", sign=1), Phrase(text="bad", sign=-1)


def find_pattern(patterns: tuple[tuple[str, int], ...], text: str) -> tuple[str, int]:
    (match,) = [candidate for candidate in patterns if candidate[0] == text]
    return match


@pytest.mark.parametrize("pattern", ["not {}", "never {}", "hardly {}", "far from {}", "anything but {}"])
def test_negation_flips_a_claim(pattern: str) -> None:
    assert build_claim("the soup", apply_pattern(find_pattern(DEGREE_PATTERNS, pattern), GOOD_PHRASE)).sign == -1
    assert build_claim("the soup", apply_pattern(find_pattern(DEGREE_PATTERNS, pattern), BAD_PHRASE)).sign == 1


def test_two_negations_cancel() -> None:
    soup = build_claim("the soup", apply_pattern(find_pattern(DEGREE_PATTERNS, "not {}"), GOOD_PHRASE))
    framed = apply_pattern(find_pattern(FRAME_PATTERNS, "nobody could claim that {}"), soup)
    assert framed == Phrase(text="nobody could claim that the soup was not good", sign=1)


@pytest.mark.parametrize("pattern", CONTRAST_PATTERNS)
def test_in_a_contrast_the_main_clause_decides(pattern: str) -> None:
    main, aside = build_claim("the soup", GOOD_PHRASE), build_claim("the wine", BAD_PHRASE)
    assert build_contrast(pattern, main, aside).sign == 1
    assert build_contrast(pattern, aside, main).sign == -1


def test_a_contrast_has_the_same_meaning_in_either_order() -> None:
    main, aside = build_claim("the soup", GOOD_PHRASE), build_claim("the wine", BAD_PHRASE)
    assert build_contrast("although {aside}, {main}.", main, aside) == Phrase(
        text="although the wine was bad, the soup was good.", sign=1
    )
    assert build_contrast("{main}, although {aside}.", main, aside) == Phrase(
        text="the soup was good, although the wine was bad.", sign=1
    )


@pytest.mark.parametrize(
    ("pattern", "sign"),
    [("as if {}!", -1), ("oh great, {}. Yeah, right.", -1), ("yes, indeed, {}.", 1)],
)
def test_irony_means_the_opposite_of_what_it_says(pattern: str, sign: int) -> None:
    assert apply_pattern(find_pattern(IRONY_PATTERNS, pattern), build_claim("the soup", GOOD_PHRASE)).sign == sign
    assert apply_pattern(find_pattern(IRONY_PATTERNS, pattern), build_claim("the soup", BAD_PHRASE)).sign == -sign


def test_the_outcome_of_an_expectation_decides() -> None:
    expectation = build_expectation("I expected {subject} to be {adjective}", "the soup", BAD_PHRASE)
    assert apply_pattern(find_pattern(OUTCOME_PATTERNS, "{}, and it was not."), expectation) == Phrase(
        text="I expected the soup to be bad, and it was not.", sign=1
    )
    assert apply_pattern(find_pattern(OUTCOME_PATTERNS, "{}, and it was."), expectation).sign == -1


def test_a_contrast_of_one_opinion_with_itself_cannot_be_made() -> None:
    soup, wine = build_claim("the soup", GOOD_PHRASE), build_claim("the wine", BAD_PHRASE)
    with pytest.raises(AssertionError):
        build_contrast(CONTRAST_PATTERNS[0], soup, soup)
    with pytest.raises(AssertionError):
        build_agreement("{first}, and {second}.", soup, wine)


@pytest.mark.parametrize("longest", [1, 2])
def test_a_bag_of_words_stays_below_eighty_percent(longest: int) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    train, train_labels = zip(*reviews("train"), strict=True)
    test, test_labels = zip(*reviews("test"), strict=True)
    vectorizer = text.TfidfVectorizer(ngram_range=(1, longest))
    classifier = linear.LogisticRegression(max_iter=1000).fit(vectorizer.fit_transform(train), train_labels)
    assert classifier.score(vectorizer.transform(test), test_labels) < 0.8


# -------------------------------------------------------------------------------------------- numbers

CARDINAL_ROWS = """
0 | zero | zéro
1 | one | un
16 | sixteen | seize
17 | seventeen | dix-sept
20 | twenty | vingt
21 | twenty-one | vingt et un
22 | twenty-two | vingt-deux
31 | thirty-one | trente et un
61 | sixty-one | soixante et un
70 | seventy | soixante-dix
71 | seventy-one | soixante et onze
72 | seventy-two | soixante-douze
77 | seventy-seven | soixante-dix-sept
80 | eighty | quatre-vingts
81 | eighty-one | quatre-vingt-un
90 | ninety | quatre-vingt-dix
91 | ninety-one | quatre-vingt-onze
99 | ninety-nine | quatre-vingt-dix-neuf
100 | one hundred | cent
101 | one hundred and one | cent un
171 | one hundred and seventy-one | cent soixante et onze
180 | one hundred and eighty | cent quatre-vingts
200 | two hundred | deux cents
201 | two hundred and one | deux cent un
280 | two hundred and eighty | deux cent quatre-vingts
999 | nine hundred and ninety-nine | neuf cent quatre-vingt-dix-neuf
1000 | one thousand | mille
1001 | one thousand and one | mille un
1100 | one thousand one hundred | mille cent
1200 | one thousand two hundred | mille deux cents
1234 | one thousand two hundred and thirty-four | mille deux cent trente-quatre
2000 | two thousand | deux mille
4080 | four thousand and eighty | quatre mille quatre-vingts
21000 | twenty-one thousand | vingt et un mille
80000 | eighty thousand | quatre-vingt mille
81081 | eighty-one thousand and eighty-one | quatre-vingt-un mille quatre-vingt-un
100000 | one hundred thousand | cent mille
200000 | two hundred thousand | deux cent mille
200200 | two hundred thousand two hundred | deux cent mille deux cents
170071 | one hundred and seventy thousand and seventy-one | cent soixante-dix mille soixante et onze
"""

DATE_ROWS = """
1994-03-03 | the third of march nineteen ninety-four | le trois mars mille neuf cent quatre-vingt-quatorze
1871-05-01 | the first of may eighteen seventy-one | le premier mai mille huit cent soixante et onze
1900-08-21 | the twenty-first of august nineteen hundred | le vingt et un août mille neuf cent
1980-05-31 | the thirty-first of may nineteen eighty | le trente et un mai mille neuf cent quatre-vingt
1905-02-08 | the eighth of february nineteen oh five | le huit février mille neuf cent cinq
2000-01-01 | the first of january two thousand | le premier janvier deux mille
2001-09-11 | the eleventh of september two thousand and one | le onze septembre deux mille un
2024-07-12 | the twelfth of july twenty twenty-four | le douze juillet deux mille vingt-quatre
"""

TIME_ROWS = """
15:25 | twenty-five past three in the afternoon | trois heures vingt-cinq de l'après-midi
05:45 | a quarter to six in the morning | six heures moins le quart du matin
00:15 | a quarter past midnight | minuit et quart
00:30 | half past midnight | minuit et demi
12:30 | half past noon | midi et demi
09:30 | half past nine in the morning | neuf heures et demie du matin
12:00 | noon | midi
00:00 | midnight | minuit
23:50 | ten to midnight | minuit moins dix
11:45 | a quarter to noon | midi moins le quart
01:00 | one o'clock in the morning | une heure du matin
12:59 | one minute to one in the afternoon | une heure moins une de l'après-midi
18:21 | twenty-one minutes past six in the evening | six heures vingt et une du soir
21:01 | one minute past nine in the evening | neuf heures une du soir
17:40 | twenty to six in the evening | six heures moins vingt du soir
"""


def parse_rows(table: str) -> list[tuple[str, ...]]:
    return [tuple(line.split(" | ")) for line in table.strip().splitlines()]


@pytest.mark.parametrize(("n", "english", "french"), parse_rows(CARDINAL_ROWS))
def test_a_number_is_spelt_as_in_the_grammar_book(n: str, english: str, french: str) -> None:
    assert number_pair(int(n)) == (english, french)


@pytest.mark.parametrize(("day", "english", "french"), parse_rows(DATE_ROWS))
def test_a_date_is_said_as_in_the_grammar_book(day: str, english: str, french: str) -> None:
    assert date_pair(date.fromisoformat(day)) == (english, french)


@pytest.mark.parametrize(("clock", "english", "french"), parse_rows(TIME_ROWS))
def test_a_time_is_said_as_in_the_grammar_book(clock: str, english: str, french: str) -> None:
    hour, minute = map(int, clock.split(":"))
    assert time_pair(hour, minute) == (english, french)


def test_a_weekday_goes_before_the_rest() -> None:
    bastille = date(1989, 7, 14)  # a Friday
    assert date_pair(bastille, weekday=True) == (
        "friday the fourteenth of july nineteen eighty-nine",
        "le vendredi quatorze juillet mille neuf cent quatre-vingt-neuf",
    )
    assert time_pair(12, 20, weekday=0) == ("monday at twenty past noon", "lundi à midi vingt")


def test_no_two_numbers_share_a_name() -> None:
    for side in (0, 1):
        assert len({number_pair(n)[side] for n in range(0, 1_000_000, 7)}) == len(range(0, 1_000_000, 7))


def test_no_english_source_occurs_in_two_splits_and_only_small_numbers_twice_in_one() -> None:
    sources = {split: [english for english, _ in numbers(split)] for split in SPLITS}
    assert (
        len(set().union(*sources.values()))
        == sum(len(set(split_sources)) for split_sources in sources.values())
        == 16500
    )
    repeated = {english for english, n_times in Counter(sources["train"]).items() if n_times > 1}
    assert repeated == {number_pair(n)[0] for n in range(101)}  # what people try first is seen more than once


def test_numbers_dates_and_times_are_equally_frequent() -> None:
    for split in SPLITS:
        french = [target for _, target in numbers(split)]
        dates = sum(target.startswith("le ") for target in french) / len(french)
        times = sum(bool(re.search(r"heure|midi|minuit", target)) for target in french) / len(french)
        assert abs(dates - 1 / 3) < 0.05
        assert abs(times - 1 / 3) < 0.05


def test_the_pairs_are_lowercase_words_without_digits() -> None:
    for row in numbers("train"):
        for text in row:
            assert re.fullmatch(r"[a-zàâéèêôûç]+(?:[ '-][a-zàâéèêôûç]+)*", text)


# -------------------------------------------------------------------------------------------- stories


def split_stories(split: str) -> list[tuple[str, str]]:
    """Titles and paragraphs."""
    parts = [story.split("\n") for story in stories(split).rstrip("\n").split("\n\n")]
    assert {len(lines) for lines in parts} == {2}
    return [(title, paragraph) for title, paragraph in parts]


def last_match(pattern: str, text: str) -> re.Match[str]:
    return list(re.finditer(pattern, text))[-1]


def check_search(paragraph: str) -> None:
    """The thing is looked for, and found, where it was last put."""
    location = r"((?:behind|in|on|under) the (?:well house|apple tree|\w+))"
    expected = last_match(rf"(?:put|kept|hid)(?: it| the \w+ \w+) {location}", paragraph)[1]
    answers = re.findall(rf"(?:is|Look|looked|And) {location}", paragraph)
    assert answers == [expected, expected], paragraph


def check_count(paragraph: str) -> None:
    """What is left and what was given away make what there was."""
    words = "|".join(NUMBERS)
    total = re.search(rf"(?:had|found|bought) ({words}) (?!of)", paragraph)
    gift = re.search(rf"({words}) of them", paragraph)
    rest = re.search(
        rf"there (?:was|were) ({words}),|({words}) of the (?:{words}) (?:was|were) left", paragraph, re.I
    )
    assert total, paragraph
    assert gift, paragraph
    assert rest, paragraph
    left_word = (rest[1] or rest[2]).lower()
    assert NUMBERS.index(gift[1]) + NUMBERS.index(left_word) == NUMBERS.index(total[1]), paragraph


def check_journey(paragraph: str) -> None:
    """The way home goes through the same places in reverse."""
    outbound = re.search(r"walked to (the \w+), then to (the \w+), and then to (the \w+)", paragraph)
    homeward = re.search(r"At (the \w+) s?he met .* passed (the \w+) first, and (the \w+) last", paragraph)
    assert outbound, paragraph
    assert homeward, paragraph
    assert outbound.groups() == homeward.groups()[::-1], paragraph


def check_swap(paragraph: str) -> None:
    """Each has in the end what the other had."""
    before = re.search(r"(\w+) had an? (\w+ \w+), and (\w+) had an? (\w+ \w+)\.", paragraph)
    after = re.search(r"So (\w+) went home with the (\w+ \w+), and (\w+) with the (\w+ \w+)\.", paragraph)
    assert before, paragraph
    assert after, paragraph
    assert after.groups() == tuple(before[index] for index in (1, 4, 3, 2)), paragraph


@pytest.mark.parametrize("split", SPLITS)
def test_every_story_ends_as_its_beginning_demands(split: str) -> None:
    checked: Counter[str] = Counter()
    for _, paragraph in split_stories(split):
        for word, check in (
            ("Where", check_search),
            ("How", check_count),
            ("Will", check_swap),
            ("", check_journey),
        ):
            if f'"{word} ' in paragraph or not word:
                check(paragraph)
                checked[word] += 1
                break
    assert min(checked.values()) > 0.1 * sum(checked.values())
    assert len(checked) == 4


def test_pronouns_suit_the_person_they_stand_for() -> None:
    for _, paragraph in split_stories("train"):
        if match := re.search(
            r"(?:On \w+|One \w+ morning) (\w+) (?:found|bought).*?\. (She|He) (?:put|kept)", paragraph
        ):
            assert (match[1] in WOMEN) == (match[2] == "She"), paragraph


def test_no_story_is_told_twice() -> None:
    all_stories = [story for split in SPLITS for story in split_stories(split)]
    assert len(all_stories) == len(set(all_stories)) == sum(SPLIT_SIZES.values())


def test_the_stories_are_tidy_and_shared_out_by_length() -> None:
    sizes = {}
    for split in SPLITS:
        text = stories(split)
        sizes[split] = len(text)
        assert text.isascii()
        assert text == text.strip() + "\n"
        assert not re.search(r"[ \t]\n|\n{3}|  | [.,?]|\ba [aeiou]|\ban (?!hour)[^aeiou]", text)
    assert sum(sizes.values()) > 500_000
    assert sizes["train"] / sum(sizes.values()) == pytest.approx(0.8, abs=0.05)
    assert sizes["valid"] / sum(sizes.values()) == pytest.approx(0.1, abs=0.05)


def test_every_word_of_a_test_story_is_in_training() -> None:
    training_words = collect_words([stories("train")])
    assert collect_words([stories("valid"), stories("test")]) <= training_words
