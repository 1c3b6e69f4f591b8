"""The audit finds what was planted, counts it by hand-made numbers, and is not slowed by the worst sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.data.audit import (
    AuditReport,
    AuditSet,
    Overlap,
    SetReport,
    audit_sets,
    find_leaked,
    normalise_text,
    read_audit_set,
    shorten_example,
)
from triform.errors import DataError

DATA_CONFIG = DataConfig()
LONG_TEXT = " ".join(f"word{n}" for n in range(40))


def find_report(report: AuditReport, name: str, side: str = "text") -> SetReport:
    return next(candidate for candidate in report.set_reports if (candidate.name, candidate.side) == (name, side))


def find_overlap(report: AuditReport, name: str, within: str = "train", side: str = "text") -> Overlap:
    key = (name, within, side)
    return next(
        candidate for candidate in report.overlaps if (candidate.name, candidate.within, candidate.side) == key
    )


def test_folding_leaves_out_what_does_not_make_another_text() -> None:
    assert normalise_text("  The\tSOUP\n was  good ") == "the soup was good"
    assert normalise_text("cafe\u0301 STRASSE") == normalise_text("Caf\u00e9 straße")
    assert normalise_text("soup.") != normalise_text("soup")
    assert normalise_text("\u3000 \u00a0") == ""


def test_repeats_within_a_set_are_counted_verbatim_and_folded() -> None:
    rows = AuditSet(texts=["a b", "A  b", "a b", "c", "", " ", LONG_TEXT, f"{LONG_TEXT} more"])
    set_report = find_report(audit_sets({"train": rows}), "train")
    assert (set_report.rows, set_report.repeats, set_report.verbatim, set_report.empty) == (8, 2, 1, 2)
    assert set_report.near == 1
    assert any("3 times, first train line 1: a b" in example for example in set_report.examples)
    assert any("train line 8 ~ train line 7" in example for example in set_report.examples)


def test_the_two_sides_of_a_leak_are_told_row_by_row() -> None:
    train = AuditSet(
        texts=["one two", "Three", LONG_TEXT, "one two"], labels=["x", "y", "x", "x"], lines=[2, 3, 4, 5]
    )
    test = AuditSet(
        texts=["three", "ONE two", "new", LONG_TEXT + " more", "", "Three"],
        labels=["y", "y", "x", "x", "x", "y"],
        lines=[10, 11, 12, 13, 14, 15],
    )
    report = audit_sets({"train": train, "test": test})
    overlap_report = find_overlap(report, "test")
    assert overlap_report.seen.tolist() == [True, True, False, False, False, True]
    assert overlap_report.near.tolist() == [False, False, False, True, False, False]
    assert (overlap_report.verbatim, overlap_report.same_label) == (1, 2)
    assert overlap_report.examples[0] == "test line 10 = train line 3: three"
    assert "test line 13 ~ train line 4 (similarity 0.97)" in overlap_report.examples[-1]
    assert len(overlap_report.examples) == 3  # no text twice
    assert [item.name for item in report.leaks] == ["test"]
    assert report.n_conflicts == 1  # "one two" is x in train and y in test


def test_every_two_sets_are_compared_and_only_training_rows_leak() -> None:
    rows = {
        name: AuditSet(texts=texts) for name, texts in (("train", ["a"]), ("valid", ["b"]), ("test", ["b", "c"]))
    }
    report = audit_sets(rows)
    assert [(item.within, item.name) for item in report.overlaps] == [
        ("train", "valid"),
        ("train", "test"),
        ("valid", "test"),
    ]
    assert find_overlap(report, "test", "valid").seen.tolist() == [True, False]
    assert not report.leaks


def test_a_text_with_two_labels_is_a_conflict_for_all_its_rows() -> None:
    rows = AuditSet(texts=["good", "Good ", "bad", "bad", "so"], labels=["1", "0", "0", "0", "1"])
    report = audit_sets({"train": rows})
    assert find_report(report, "train").conflicts == report.n_conflicts == 2
    assert "'1' at line 1, '0' at line 2: good" in find_report(report, "train").examples
    assert report.label_counts == {"train": {"0": 3, "1": 2}}


def test_labels_are_told_apart_as_they_are_written() -> None:
    assert audit_sets({"train": AuditSet(texts=["a", "a"], labels=["Yes", "yes"])}).n_conflicts == 2


def test_pairs_are_looked_at_by_source_by_target_and_together() -> None:
    train = AuditSet(texts=["one", "one", "One", "two", ""], targets=["un", "une", "UN", "deux", "x"])
    test = AuditSet(texts=["ONE", "two", "three"], targets=["un", "deuxième", "deux"])
    report = audit_sets({"train": train, "test": test})
    assert [find_report(report, "train", side).repeats for side in ("source", "target", "pair")] == [2, 1, 1]
    assert find_report(report, "train", "source").conflicts == 3  # sentences translated in more than one way
    seen_rows = {
        side: find_overlap(report, "test", side=side).seen.tolist() for side in ("source", "target", "pair")
    }
    assert seen_rows["source"] == [True, True, False]
    assert seen_rows["target"] == [True, False, True]
    assert seen_rows["pair"] == [True, False, False]
    assert find_overlap(report, "test", side="source").same_label == 1
    assert report.n_conflicts == 0  # a second translation contradicts nothing
    assert {item.side for item in report.leaks} == {"source", "pair"}


def test_overlong_rows_are_counted_in_words_or_in_what_is_given() -> None:
    rows = {"train": AuditSet(texts=["a b c", "a b", "天气很好", ""])}
    assert find_report(audit_sets(rows), "train").overlong == 0
    assert find_report(audit_sets(rows, max_len=2), "train").overlong == 2
    by_characters = audit_sets(rows, max_len=3, lengths=lambda side, texts: [len(text) for text in texts])
    assert find_report(by_characters, "train").overlong == 2


def test_seen_tells_for_each_text_whether_training_has_it() -> None:
    train = ["The soup was good.", LONG_TEXT, "", "x"]
    others = ["the  SOUP was good.", "soup", f"{LONG_TEXT} more", "", "x"]
    assert find_leaked(train, others) == [True, False, False, False, True]
    assert find_leaked(train, others, near=True) == [True, False, True, False, True]
    assert find_leaked(iter(train), iter(others)) == find_leaked(train, others)
    assert find_leaked([], []) == find_leaked([], [], near=True) == []
    assert find_leaked([], ["a"], near=True) == [False]


def test_sets_without_rows_are_no_mistake() -> None:
    report = audit_sets({"train": AuditSet(texts=[]), "test": AuditSet(texts=["a", ""])})
    assert find_report(report, "train").rows == 0
    assert find_overlap(report, "test").seen.tolist() == [False, False]
    assert audit_sets({}).set_reports == ()


def test_one_row_a_hundred_thousand_times_is_one_text() -> None:
    n = 100_000
    rows = {
        "train": AuditSet(texts=["the same row"] * n, labels=["a"] * n),
        "test": AuditSet(texts=["The same row"] * 9),
    }
    report = audit_sets(rows)
    assert find_report(report, "train").repeats == n - 1
    assert find_overlap(report, "test").seen.all()


def test_examples_are_short_and_on_one_line() -> None:
    assert shorten_example("a\nb\tc") == "a b c"
    assert len(shorten_example("x" * 2_000_000)) == 72
    report = audit_sets({"train": AuditSet(texts=["x " * 500_000] * 2)})
    assert max(map(len, find_report(report, "train").examples)) < 200


# -- reading


def write_file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_sets_are_read_as_training_reads_them(tmp_path: Path) -> None:
    table = write_file(tmp_path, "a.csv", "label,text\nx,one\ny,two\n")
    rows = read_audit_set("classify", table, DATA_CONFIG)
    assert (rows.texts, rows.labels, rows.lines) == (["one", "two"], ["x", "y"], [2, 3])
    assert read_audit_set("generate", table, DATA_CONFIG).labels == []
    story = write_file(tmp_path, "a.txt", "one\n\n  \ntwo\n")
    rows = read_audit_set("generate", story, DATA_CONFIG)
    assert (rows.texts, rows.lines) == (["one", "two"], [1, 4])
    source, target = write_file(tmp_path, "a.en", "one\ntwo\n"), write_file(tmp_path, "a.fr", "un\ndeux\n")
    rows = read_audit_set("translate", f"{source},{target}", DATA_CONFIG)
    assert (rows.texts, rows.targets) == (["one", "two"], ["un", "deux"])


def test_a_text_without_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file has only blank lines"):
        read_audit_set("generate", write_file(tmp_path, "a.txt", "\n \n"), DATA_CONFIG)


def test_some_rows_keep_what_belongs_to_them() -> None:
    rows = AuditSet(texts=["a", "b", "c"], labels=["x", "y", "z"], lines=[4, 5, 6]).select([True, False, True])
    assert (rows.texts, rows.labels, rows.lines, rows.targets) == (["a", "c"], ["x", "z"], [4, 6], [])
