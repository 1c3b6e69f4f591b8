"""The audit finds what was planted, counts it by hand-made numbers, and is not slowed by the worst sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.data.audit import Audit, Content, Overlap, Rows, audit, fold, read_set, seen, shortened
from triform.errors import DataError

LAYOUT = DataConfig()
LONG = " ".join(f"word{n}" for n in range(40))


def content(found: Audit, name: str, side: str = "text") -> Content:
    return next(each for each in found.contents if (each.name, each.side) == (name, side))


def overlap(found: Audit, name: str, within: str = "train", side: str = "text") -> Overlap:
    asked = (name, within, side)
    return next(each for each in found.overlaps if (each.name, each.within, each.side) == asked)


def test_folding_leaves_out_what_does_not_make_another_text() -> None:
    assert fold("  The\tSOUP\n was  good ") == "the soup was good"
    assert fold("cafe\u0301 STRASSE") == fold("Caf\u00e9 straße")
    assert fold("soup.") != fold("soup")
    assert fold("\u3000 \u00a0") == ""


def test_repeats_within_a_set_are_counted_verbatim_and_folded() -> None:
    rows = Rows(texts=["a b", "A  b", "a b", "c", "", " ", LONG, f"{LONG} more"])
    found = content(audit({"train": rows}), "train")
    assert (found.rows, found.repeats, found.verbatim, found.empty) == (8, 2, 1, 2)
    assert found.near == 1
    assert any("3 times, first train line 1: a b" in example for example in found.examples)
    assert any("train line 8 ~ train line 7" in example for example in found.examples)


def test_the_two_sides_of_a_leak_are_told_row_by_row() -> None:
    train = Rows(texts=["one two", "Three", LONG, "one two"], labels=["x", "y", "x", "x"], lines=[2, 3, 4, 5])
    test = Rows(
        texts=["three", "ONE two", "new", LONG + " more", "", "Three"],
        labels=["y", "y", "x", "x", "x", "y"],
        lines=[10, 11, 12, 13, 14, 15],
    )
    found = audit({"train": train, "test": test})
    shared = overlap(found, "test")
    assert shared.seen.tolist() == [True, True, False, False, False, True]
    assert shared.near.tolist() == [False, False, False, True, False, False]
    assert (shared.verbatim, shared.same_label) == (1, 2)
    assert shared.examples[0] == "test line 10 = train line 3: three"
    assert "test line 13 ~ train line 4 (0.97 alike)" in shared.examples[-1]
    assert len(shared.examples) == 3  # no text twice
    assert [each.name for each in found.leaks] == ["test"]
    assert found.conflicts == 1  # "one two" is x in train and y in test


def test_every_two_sets_are_compared_and_only_training_rows_leak() -> None:
    rows = {name: Rows(texts=texts) for name, texts in (("train", ["a"]), ("valid", ["b"]), ("test", ["b", "c"]))}
    found = audit(rows)
    assert [(each.within, each.name) for each in found.overlaps] == [
        ("train", "valid"),
        ("train", "test"),
        ("valid", "test"),
    ]
    assert overlap(found, "test", "valid").seen.tolist() == [True, False]
    assert not found.leaks


def test_a_text_with_two_labels_is_a_conflict_for_all_its_rows() -> None:
    rows = Rows(texts=["good", "Good ", "bad", "bad", "so"], labels=["1", "0", "0", "0", "1"])
    found = audit({"train": rows})
    assert content(found, "train").conflicts == found.conflicts == 2
    assert "'1' at line 1, '0' at line 2: good" in content(found, "train").examples
    assert found.labels == {"train": {"0": 3, "1": 2}}


def test_labels_are_told_apart_as_they_are_written() -> None:
    assert audit({"train": Rows(texts=["a", "a"], labels=["Yes", "yes"])}).conflicts == 2


def test_pairs_are_looked_at_by_source_by_target_and_together() -> None:
    train = Rows(texts=["one", "one", "One", "two", ""], targets=["un", "une", "UN", "deux", "x"])
    test = Rows(texts=["ONE", "two", "three"], targets=["un", "deuxième", "deux"])
    found = audit({"train": train, "test": test})
    assert [content(found, "train", side).repeats for side in ("source", "target", "pair")] == [2, 1, 1]
    assert content(found, "train", "source").conflicts == 3  # sentences translated in more than one way
    seen_rows = {side: overlap(found, "test", side=side).seen.tolist() for side in ("source", "target", "pair")}
    assert seen_rows["source"] == [True, True, False]
    assert seen_rows["target"] == [True, False, True]
    assert seen_rows["pair"] == [True, False, False]
    assert overlap(found, "test", side="source").same_label == 1
    assert found.conflicts == 0  # a second translation contradicts nothing
    assert {each.side for each in found.leaks} == {"source", "pair"}


def test_overlong_rows_are_counted_in_words_or_in_what_is_given() -> None:
    rows = {"train": Rows(texts=["a b c", "a b", "天气很好", ""])}
    assert content(audit(rows), "train").overlong == 0
    assert content(audit(rows, max_len=2), "train").overlong == 2
    by_characters = audit(rows, max_len=3, lengths=lambda side, texts: [len(text) for text in texts])
    assert content(by_characters, "train").overlong == 2


def test_seen_tells_for_each_text_whether_training_has_it() -> None:
    train = ["The soup was good.", LONG, "", "x"]
    others = ["the  SOUP was good.", "soup", f"{LONG} more", "", "x"]
    assert seen(train, others) == [True, False, False, False, True]
    assert seen(train, others, near=True) == [True, False, True, False, True]
    assert seen(iter(train), iter(others)) == seen(train, others)
    assert seen([], []) == seen([], [], near=True) == []
    assert seen([], ["a"], near=True) == [False]


def test_sets_without_rows_are_no_mistake() -> None:
    found = audit({"train": Rows(texts=[]), "test": Rows(texts=["a", ""])})
    assert content(found, "train").rows == 0
    assert overlap(found, "test").seen.tolist() == [False, False]
    assert audit({}).contents == ()


def test_one_row_a_hundred_thousand_times_is_one_text() -> None:
    n = 100_000
    rows = {"train": Rows(texts=["the same row"] * n, labels=["a"] * n), "test": Rows(texts=["The same row"] * 9)}
    found = audit(rows)
    assert content(found, "train").repeats == n - 1
    assert overlap(found, "test").seen.all()


def test_examples_are_short_and_on_one_line() -> None:
    assert shortened("a\nb\tc") == "a b c"
    assert len(shortened("x" * 2_000_000)) == 72
    found = audit({"train": Rows(texts=["x " * 500_000] * 2)})
    assert max(map(len, content(found, "train").examples)) < 200


# -- reading


def put(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_sets_are_read_as_training_reads_them(tmp_path: Path) -> None:
    table = put(tmp_path, "a.csv", "label,text\nx,one\ny,two\n")
    rows = read_set("classify", table, LAYOUT)
    assert (rows.texts, rows.labels, rows.lines) == (["one", "two"], ["x", "y"], [2, 3])
    assert read_set("generate", table, LAYOUT).labels == []
    story = put(tmp_path, "a.txt", "one\n\n  \ntwo\n")
    rows = read_set("generate", story, LAYOUT)
    assert (rows.texts, rows.lines) == (["one", "two"], [1, 4])
    source, target = put(tmp_path, "a.en", "one\ntwo\n"), put(tmp_path, "a.fr", "un\ndeux\n")
    rows = read_set("translate", f"{source},{target}", LAYOUT)
    assert (rows.texts, rows.targets) == (["one", "two"], ["un", "deux"])


def test_a_text_without_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no line with anything on it"):
        read_set("generate", put(tmp_path, "a.txt", "\n \n"), LAYOUT)


def test_some_rows_keep_what_belongs_to_them() -> None:
    rows = Rows(texts=["a", "b", "c"], labels=["x", "y", "z"], lines=[4, 5, 6]).some([True, False, True])
    assert (rows.texts, rows.labels, rows.lines, rows.targets) == (["a", "c"], ["x", "z"], [4, 6], [])
