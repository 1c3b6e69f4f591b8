"""All baselines of a task at once: the task's own names for scores, and a reason where there is no score."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triform.data.readers import LabelledText, TextChunk, TextPair
from triform.errors import DataError
from triform.evaluation import baselines
from triform.evaluation.baselines.labels import MajorityBaseline
from triform.evaluation.baselines.ngram import NGramModel
from triform.evaluation.baselines.tfidf import TfidfBaseline
from triform.evaluation.baselines.translation import CopyBaseline, WordByWordBaseline

ROWS = [
    LabelledText(f"the {'soup' if n % 3 else 'bread'} is {'warm' if n % 2 else 'cold'}", str(n % 2), n)
    for n in range(40)
]
PAIRS = [
    TextPair("one two three four", "un deux trois quatre", 1),
    TextPair("two one", "deux un", 2),
    TextPair("one", "un", 3),
]


def test_each_task_has_its_baselines_each_with_the_scores_it_gives_alone() -> None:
    metrics = baselines.evaluate_baselines("classify", ROWS[:30], ROWS[30:])
    assert metrics == {
        "majority": MajorityBaseline.fit(ROWS[:30]).evaluate(ROWS[30:]),
        "tfidf": TfidfBaseline.fit(ROWS[:30]).evaluate(ROWS[30:]),
    }
    assert metrics["tfidf"]["accuracy"] == 1
    metrics = baselines.evaluate_baselines("translate", iter(PAIRS), iter(PAIRS))
    assert metrics == {
        "copy": CopyBaseline().evaluate(PAIRS),
        "wordwise": WordByWordBaseline.fit(PAIRS).evaluate(PAIRS),
    }
    assert metrics["wordwise"]["bleu"] > metrics["copy"]["bleu"]
    assert not metrics.reasons


def test_language_is_modelled_over_the_tokens_given_or_else_over_characters() -> None:
    text = [TextChunk("abab abba baba " * 20, False, 1)]
    other = [TextChunk("abba abab é", False, 1)]
    characters = baselines.evaluate_baselines("generate", text, other)["ngram"]
    assert characters["tokens"] == 10
    assert characters["bits_per_byte"] > 0
    tokenized = baselines.evaluate_baselines(
        "generate", text, other, tokenize=lambda text: [0, 1] * (len(text) // 2), vocab_size=2
    )
    assert "bits_per_byte" not in tokenized["ngram"]
    assert tokenized["ngram"]["loss"] == pytest.approx(NGramModel.fit([0, 1] * 150, 2).loss([0, 1] * 5))


@pytest.mark.parametrize(
    ("task", "train", "test", "reasons"),
    [
        ("classify", ROWS[::2], ROWS, {"tfidf": "all rows have the label '0'"}),
        ("classify", [], ROWS, {"majority": "there are no training rows", "tfidf": "there are no training rows"}),
        (
            "classify",
            ROWS,
            [],
            {"majority": "there are no rows to evaluate", "tfidf": "there are no rows to evaluate"},
        ),
        ("generate", [], [TextChunk("ab", False, 1)], {"ngram": "there is no text"}),
        ("generate", [TextChunk("", False, 1)], [TextChunk("ab", False, 1)], {"ngram": "there is no text"}),
        ("generate", [TextChunk("ab", False, 1)], [], {"ngram": "fewer than two tokens"}),
        (
            "translate",
            PAIRS,
            [TextPair("seven", "sept", 1)],
            {"wordwise": "no word of the test sources occurs in the training data"},
        ),
        ("translate", [], PAIRS, {"wordwise": "contain no words"}),
    ],
)
def test_what_cannot_be_fitted_or_judged_is_there_with_its_reason(
    task: str, train: list[object], test: list[object], reasons: dict[str, str]
) -> None:
    metrics = baselines.evaluate_baselines(task, train, test)  # type: ignore[arg-type]
    assert (
        set(metrics)
        == {"classify": {"majority", "tfidf"}, "generate": {"ngram"}, "translate": {"copy", "wordwise"}}[task]
    )
    assert set(metrics.reasons) == set(reasons) == {name for name, values in metrics.items() if not values}
    for name, reason in reasons.items():
        assert reason in metrics.reasons[name]


def test_a_file_that_cannot_be_read_is_the_reason_of_every_baseline() -> None:
    def damaged_rows() -> Iterator[LabelledText]:
        yield ROWS[0]
        raise DataError("the label is empty", path="rows.csv", line=2)

    message = "rows.csv, line 2: the label is empty"
    assert baselines.evaluate_baselines("classify", damaged_rows(), ROWS).reasons == {
        "majority": message,
        "tfidf": message,
    }
    assert baselines.evaluate_baselines("classify", ROWS, damaged_rows()).reasons == {
        "majority": message,
        "tfidf": message,
    }


def test_more_data_than_a_baseline_can_hold_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.evaluation.baselines.tfidf.MAX_WORK", 500)
    monkeypatch.setattr("triform.evaluation.baselines.ngram.MAX_TOKENS", 5)
    metrics = baselines.evaluate_baselines("classify", ROWS, ROWS)
    assert metrics["majority"]
    assert metrics.reasons == {
        "tfidf": f"2 labels and {sum(len(row.text) for row in ROWS)} characters of text are too much"
    }
    pieces = [TextChunk("abc", True, 1), TextChunk("de", False, 2)]
    assert baselines.evaluate_baselines("generate", pieces, pieces).reasons == {
        "ngram": "the text has more than 5 tokens, which is too much for this baseline"
    }
    monkeypatch.setattr("triform.evaluation.baselines.table.MAX_CHARACTERS", 30)
    for task, rows in (("classify", ROWS), ("translate", PAIRS)):
        reasons = baselines.evaluate_baselines(task, rows, rows).reasons  # type: ignore[arg-type]
        assert set(reasons.values()) == {
            "the data has more than 30 characters, which is too much for this baseline"
        }


def test_baselines_fitted_once_judge_several_sets() -> None:
    fitted = baselines.fit_baselines("classify", iter(ROWS))
    assert fitted.evaluate(ROWS[:10])["tfidf"]["rows"] == 10
    assert fitted.evaluate(iter(ROWS[:20]))["tfidf"]["rows"] == 20
