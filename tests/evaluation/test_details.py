"""Details of an evaluation: the numbers of scikit-learn and sacreBLEU, and buckets that add up."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from sacrebleu import sentence_chrf
from sklearn.metrics import classification_report, confusion_matrix

from triform.evaluation.details import (
    MAX_MATRIX_LABELS,
    MAX_STORED_CHARACTERS,
    Details,
    build_tables,
    compact_details,
    details_from_dict,
    details_to_dict,
)
from triform.evaluation.label_details import (
    LabelDetails,
    Mistake,
    MistakeCollector,
    ScoredMistake,
    build_label_details,
    select_mistakes,
)
from triform.evaluation.loss_details import LossSums, TokenCounts, build_loss_details
from triform.evaluation.metrics import macro_f1
from triform.evaluation.sentence_details import build_sentence_details


def make_details(
    n_labels: int, n_rows: int = 400, text: str = "a text"
) -> tuple[LabelDetails, list[str], list[str]]:
    """Random predictions, in which the last label is never predicted and the one before it never occurs."""
    names, n_rows = [f"label {index}" for index in range(n_labels)], 400
    generator = np.random.default_rng(n_labels)
    targets, predicted = (generator.integers(0, n_labels, n_rows) for _ in range(2))
    targets[targets == n_labels - 2] = 0
    predicted[(predicted == n_labels - 1) | (generator.random(n_rows) < 0.5)] = 1
    predicted[predicted == n_labels - 2] = 0
    confusion = np.zeros((n_labels, n_labels), np.int64)
    np.add.at(confusion, (targets, predicted), 1)
    mistake = Mistake(line=3, text=text, expected="a", predicted="b", probability=0.9, expected_probability=0.1)
    details = build_label_details(names, confusion, [mistake])
    return details, [names[i] for i in targets], [names[i] for i in predicted]


@pytest.mark.parametrize("n_labels", [3, 6, 60])
def test_the_metrics_of_labels_are_those_of_scikit_learn(n_labels: int) -> None:
    details, targets, predicted = make_details(n_labels)
    report = classification_report(targets, predicted, output_dict=True, zero_division=0)
    assert {item.label for item in details.classes} == {name for name in report if name.startswith("label")}
    for item in details.classes:
        expected = report[item.label]
        assert [item.precision, item.recall, item.f1, item.support] == pytest.approx(
            [expected[name] for name in ("precision", "recall", "f1-score", "support")]
        )
    macro = report["macro avg"]
    assert list(details.macro.values()) == pytest.approx([macro[k] for k in ("precision", "recall", "f1-score")])
    assert details.confusion == confusion_matrix(targets, predicted, labels=details.labels).tolist()
    assert details.macro["f1"] == pytest.approx(macro_f1(np.array(details.confusion)))
    assert details.n_mistakes == sum(a != b for a, b in zip(targets, predicted, strict=True))


def test_pairs_are_those_that_are_confused_most_often() -> None:
    details, targets, predicted = make_details(5)
    counts = [pair.rows for pair in details.confused_pairs]
    assert counts == sorted(counts, reverse=True)
    for pair in details.confused_pairs:
        rows = zip(targets, predicted, strict=True)
        assert pair.rows == sum((a, b) == (pair.expected, pair.predicted) for a, b in rows)
    assert sum(counts) == details.n_mistakes


def test_the_most_confident_mistakes_come_first_and_ties_in_the_order_of_the_rows() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet([1, 1, 1], 50).round(1).astype(np.float32)  # many ties
    probs[7] = probs[30] = [0.0, 0.1, 0.9]
    probs[30, 2] += 1e-7  # rounding
    labels, predicted = generator.integers(0, 3, 50), probs.argmax(1)
    labels[[7, 30]] = 0
    wrong = [row for row in range(50) if labels[row] != predicted[row]]
    expected = sorted(wrong, key=lambda row: (-round(float(probs[row].max()), 6), row))
    collector = MistakeCollector(12)
    for rows in np.array_split(generator.permutation(50), 7):
        collector.add(rows, labels[rows], predicted[rows], probs[rows])
    assert [mistake.row for mistake in collector.mistakes] == expected[:12]
    assert expected.index(7) < expected.index(30)
    assert select_mistakes([ScoredMistake(0, 0, 1, 0.5, 0.2)], 0) == []


@pytest.mark.parametrize("n_labels", [2, MAX_MATRIX_LABELS, MAX_MATRIX_LABELS + 1, 60])
def test_many_labels_are_shown_as_pairs_and_by_their_lowest_f1(n_labels: int) -> None:
    details, *_ = make_details(n_labels, text="long " * 200)
    tables = {table.name: table for table in build_tables(details)}
    assert ("confusion" in tables) == (n_labels <= MAX_MATRIX_LABELS)
    assert ("pairs" in tables) == (n_labels > MAX_MATRIX_LABELS)
    assert len(tables["classes"].rows) <= 21  # with the mean
    assert all(
        len(row) == len(table.columns) == len(table.kinds) for table in tables.values() for row in table.rows
    )
    if n_labels == 60:
        visible = {row[0] for row in tables["classes"].rows[:-1]}
        others = [item.f1 for item in details.classes if item.label not in visible]
        assert max(item.f1 for item in details.classes if item.label in visible) <= min(others)


def test_sentences_are_ordered_by_the_chrf_of_sacrebleu() -> None:
    references = ["le chat dort", "un deux trois", "la mer", "la mer", "bonjour"]
    outputs = ["le chat dort", "un deux", "", "", "bonsoir"]
    details = build_sentence_details([5, 6, 7, 8, 9], ["s"] * 5, references, outputs, 3)
    scores = [sentence_chrf(a, [b]).score for a, b in zip(outputs, references, strict=True)]
    assert [item.line for item in details.worst] == [7, 8, 9]  # equal ones in the order of the data
    assert [item.chrf for item in details.worst] == pytest.approx([scores[2], scores[3], scores[4]])
    assert details.mean_chrf == pytest.approx(np.mean(scores))
    assert (details.pairs, details.n_empty) == (5, 2)
    assert "chrF2" in details.signature or "nc:6" in details.signature


def make_loss_sums() -> LossSums:
    """Six predictions: two windows of three tokens. Token 0 occurs twice, token 2 three times, token 3 once."""
    sums = LossSums(max_context=3, vocab_size=5)
    sums.add(np.array([1, 2, 3]), np.array([0, 2, 2]), np.array([4.0, 1.0, 3.0], np.float32))
    sums.add(np.array([1, 2, 3]), np.array([3, 0, 2]), np.array([6.0, 5.0, 2.0], np.float32))
    return sums


def test_buckets_of_the_loss_by_hand() -> None:
    counts = TokenCounts(np.array([9, 0, 10, 0, 123]), is_complete=True)
    details = build_loss_details(make_loss_sums(), counts)
    assert (details.tokens, details.loss) == (6, 3.5)
    assert [(b.low, b.high, b.tokens, b.loss) for b in details.by_context] == [
        (1, 1, 2, 5),
        (2, 2, 2, 3),
        (3, 3, 2, 2.5),
    ]
    expected = [(0, 0, 1, 6), (1, 9, 2, 4.5), (10, 99, 3, 2)]
    assert [(b.low, b.high, b.tokens, b.loss) for b in details.by_frequency] == expected
    for buckets in (details.by_context, details.by_frequency):
        assert sum(b.tokens for b in buckets) == details.tokens
        assert sum(b.tokens * b.loss for b in buckets) / details.tokens == pytest.approx(details.loss)


def test_without_counts_the_reason_is_given() -> None:
    details = build_loss_details(make_loss_sums(), None, "the file is gone")
    context, frequency = build_tables(details)
    assert context.rows
    assert (frequency.rows, frequency.note) == ([], "Not available: the file is gone")


def test_details_return_from_json_and_their_short_form_has_the_same_tables() -> None:
    counts = TokenCounts(np.array([9, 0, 10, 0, 123]), is_complete=False)
    cases: dict[str, Details] = {
        "classify": make_details(60, text="<b>" * 1000)[0],
        "translate": build_sentence_details([1], ["s" * 2000], ["r" * 2000], ["o" * 2000], 1),
        "generate": build_loss_details(make_loss_sums(), counts),
    }
    for task, details in cases.items():
        assert details_from_dict(task, json.loads(json.dumps(details_to_dict(details)))) == details
        compact = compact_details(details)
        assert len(json.dumps(asdict(compact))) < 10_000
        for table, short in zip(build_tables(details), build_tables(compact), strict=True):
            assert (table.title, table.columns, table.note) == (short.title, short.columns, short.note)
            limit = MAX_STORED_CHARACTERS
            cut = [[cell if len(cell) <= limit else cell[: limit - 1] + "…" for cell in row] for row in table.rows]
            assert cut == short.rows
