"""All baselines of a task at once: the task's own names for scores, and a reason where there is no score."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triform import baselines
from triform.baselines.labels import Majority
from triform.baselines.ngram import NGram
from triform.baselines.tfidf import Tfidf
from triform.baselines.translation import Copy, Wordwise
from triform.data.readers import Pair, Piece, Row
from triform.errors import DataError

ROWS = [
    Row(f"the {'soup' if n % 3 else 'bread'} is {'warm' if n % 2 else 'cold'}", str(n % 2), n) for n in range(40)
]
PAIRS = [Pair("one two three four", "un deux trois quatre", 1), Pair("two one", "deux un", 2), Pair("one", "un", 3)]


def test_each_task_has_its_baselines_each_with_the_scores_it_gives_alone() -> None:
    found = baselines.scores("classify", ROWS[:30], ROWS[30:])
    assert found == {
        "majority": Majority.fit(ROWS[:30]).score(ROWS[30:]),
        "tfidf": Tfidf.fit(ROWS[:30]).score(ROWS[30:]),
    }
    assert found["tfidf"]["accuracy"] == 1
    found = baselines.scores("translate", iter(PAIRS), iter(PAIRS))
    assert found == {"copy": Copy().score(PAIRS), "wordwise": Wordwise.fit(PAIRS).score(PAIRS)}
    assert found["wordwise"]["bleu"] > found["copy"]["bleu"]
    assert not found.reasons


def test_language_is_modelled_over_the_tokens_given_or_else_over_characters() -> None:
    text = [Piece("abab abba baba " * 20, False, 1)]
    other = [Piece("abba abab é", False, 1)]
    characters = baselines.scores("generate", text, other)["ngram"]
    assert characters["tokens"] == 10
    assert characters["bits_per_byte"] > 0
    halves = baselines.scores(
        "generate", text, other, tokenize=lambda text: [0, 1] * (len(text) // 2), vocab_size=2
    )
    assert "bits_per_byte" not in halves["ngram"]
    assert halves["ngram"]["loss"] == pytest.approx(NGram.fit([0, 1] * 150, 2).loss([0, 1] * 5))


@pytest.mark.parametrize(
    ("task", "train", "test", "reasons"),
    [
        ("classify", ROWS[::2], ROWS, {"tfidf": "only one label, '0', to tell apart"}),
        ("classify", [], ROWS, {"majority": "no rows to learn from", "tfidf": "no rows to learn from"}),
        ("classify", ROWS, [], {"majority": "no rows to judge by", "tfidf": "no rows to judge by"}),
        ("generate", [], [Piece("ab", False, 1)], {"ngram": "there is no text"}),
        ("generate", [Piece("", False, 1)], [Piece("ab", False, 1)], {"ngram": "there is no text"}),
        ("generate", [Piece("ab", False, 1)], [], {"ngram": "fewer than two tokens"}),
        (
            "translate",
            PAIRS,
            [Pair("seven", "sept", 1)],
            {"wordwise": "no word of the sources was seen in training"},
        ),
        ("translate", [], PAIRS, {"wordwise": "no words on one side"}),
    ],
)
def test_what_cannot_be_fitted_or_judged_is_there_with_its_reason(
    task: str, train: list[object], test: list[object], reasons: dict[str, str]
) -> None:
    found = baselines.scores(task, train, test)  # type: ignore[arg-type]
    assert (
        set(found)
        == {"classify": {"majority", "tfidf"}, "generate": {"ngram"}, "translate": {"copy", "wordwise"}}[task]
    )
    assert set(found.reasons) == set(reasons) == {name for name, scores in found.items() if not scores}
    for name, reason in reasons.items():
        assert reason in found.reasons[name]


def test_a_file_that_cannot_be_read_is_the_reason_of_every_baseline() -> None:
    def damaged() -> Iterator[Row]:
        yield ROWS[0]
        raise DataError("has an empty label", path="rows.csv", line=2)

    said = "rows.csv, line 2: has an empty label"
    assert baselines.scores("classify", damaged(), ROWS).reasons == {"majority": said, "tfidf": said}
    assert baselines.scores("classify", ROWS, damaged()).reasons == {"majority": said, "tfidf": said}


def test_baselines_fitted_once_judge_several_sets() -> None:
    fitted = baselines.fit("classify", iter(ROWS))
    assert fitted.scores(ROWS[:10])["tfidf"]["rows"] == 10
    assert fitted.scores(iter(ROWS[:20]))["tfidf"]["rows"] == 20
