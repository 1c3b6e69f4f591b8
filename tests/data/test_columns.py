"""Finding the text, the label and the header by looking."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.data.columns import Columns, find_pair_columns, find_row_columns
from triform.data.readers import describe_columns
from triform.errors import DataError

DATA_CONFIG = DataConfig()
REVIEWS = [["a fine film", "1"], ["a dull film indeed", "0"], ["quite good", "1"], ["not good", "0"]]


def reverse_columns(rows: list[list[str]]) -> list[list[str]]:
    return [row[::-1] for row in rows]


def find_columns(rows: list[list[str]], data_config: DataConfig = DATA_CONFIG, *, labelled: bool = True) -> Columns:
    return find_row_columns("a.csv", rows, data_config, labelled=labelled)


def test_a_label_may_stand_first_or_last() -> None:
    assert find_columns(REVIEWS) == Columns(False, 0, 1)
    assert find_columns(reverse_columns(REVIEWS)) == Columns(False, 1, 0)
    assert find_columns([["a fine film", "pos"]]) == Columns(False, 0, 1)
    assert find_columns([["pos", "a fine film"]]) == Columns(False, 1, 0)


@pytest.mark.parametrize(
    "names", [["text", "label"], ["Sentence", " Class "], ["REVIEW", "y"], ["content", "stars"]]
)
def test_known_names_are_a_header_wherever_they_stand(names: list[str]) -> None:
    assert find_columns([names, *REVIEWS]) == Columns(True, 0, 1)
    assert find_columns(reverse_columns([names, *REVIEWS])) == Columns(True, 1, 0)


def test_one_known_name_is_a_header_unless_the_row_looks_like_the_others() -> None:
    assert find_columns([["text", "mood"], *REVIEWS]) == Columns(True, 0, 1)
    assert find_columns([["content", "1"], *REVIEWS]) == Columns(False, 0, 1)  # a review of one word


def test_unknown_names_are_a_header_when_the_label_never_comes_again() -> None:
    assert find_columns([["phrase", "mood"], *REVIEWS]) == Columns(True, 0, 1)
    assert find_columns([["phrase", "1"], *REVIEWS]) == Columns(False, 0, 1)
    assert find_columns([["a whole sentence", "mood"], *REVIEWS]) == Columns(False, 0, 1)


def test_the_text_is_the_longest_of_the_other_columns() -> None:
    rows = [[str(n % 2), f"2024-01-0{n}", "user", f"some words, {n} of them"] for n in range(1, 6)]
    assert find_columns(rows) == Columns(False, 3, 0)
    assert find_columns([["id", "label", "text"], ["7", "x", "b"], ["8", "y", "a"]]) == Columns(True, 2, 1)


def test_what_the_user_says_goes_first() -> None:
    numbered = DataConfig(text_column="2", label_column="1")
    assert find_columns(REVIEWS, numbered) == Columns(False, 1, 0)
    assert find_columns([["text", "label"], *REVIEWS], DataConfig(header="no")) == Columns(False, 0, 1)
    assert find_columns(REVIEWS, DataConfig(header="yes")) == Columns(True, 0, 1)
    named = [["title", "review", "label"], ["long words here", "a", "x"], ["words", "b", "y"]]
    assert find_columns(named, DataConfig(text_column="Title")) == Columns(True, 0, 2)
    assert find_columns(named, DataConfig(label_column="review")) == Columns(True, 0, 1)
    assert find_columns(named, DataConfig(text_column="label", label_column="1")) == Columns(True, 2, 0)


def test_identifiers_are_not_taken_for_labels() -> None:
    rows = [[str(n), "x" if n % 2 else "y", f"some words, {n} of them"] for n in range(30)]
    with pytest.raises(DataError, match=r"a\.csv: no column looks like a label .* set data\.label_column"):
        find_columns(rows)
    assert find_columns(rows, DataConfig(label_column="2")) == Columns(False, 2, 1)
    assert find_columns(rows, labelled=False) == Columns(False, 2, None)


def test_without_labels_only_a_named_one_is_taken() -> None:
    assert find_columns(REVIEWS, labelled=False) == Columns(False, 0, None)
    assert find_columns([["text", "label"], *REVIEWS], labelled=False) == Columns(True, 0, 1)
    assert find_columns([["text"], ["a b"], ["c d"]], labelled=False) == Columns(True, 0, None)
    assert find_columns([["a b"], ["c d"]], DataConfig(label_column="1"), labelled=False) == Columns(False, 0, None)
    assert find_columns([["a b"], ["c d"]], DataConfig(label_column="mood"), labelled=False) == Columns(
        False, 0, None
    )


def test_rows_shorter_than_the_first_do_not_disturb_the_looking() -> None:
    assert find_columns([*REVIEWS, ["short"], []]) == Columns(False, 0, 1)


def test_words_that_are_also_languages_are_not_a_header_when_they_come_again() -> None:
    rows = [["no", "it"], ["yes", "it"], ["no", "he"]]
    assert find_pair_columns("a.tsv", rows, DATA_CONFIG) == Columns(False, 0, 1)
    assert find_pair_columns("a.tsv", [["fr", "en"], *rows], DATA_CONFIG) == Columns(True, 0, 1)
    assert find_pair_columns("a.tsv", [["fr", "en"], *rows], DataConfig(source_column="en")) == Columns(True, 1, 0)
    with pytest.raises(DataError, match="cannot be both source and target"):
        find_pair_columns("a.tsv", rows, DataConfig(source_column="1", target_column="1"))


@pytest.mark.parametrize(
    ("name", "text", "description"),
    [
        ("a.csv", "label,text\ngood,so fine\nbad,so poor\n", "a header, text in column 2, label in column 1"),
        (
            "a.tsv",
            "so fine\tgood\nso poor\tbad\nfine\tgood\n",
            "no header, text in column 1, label in column 2",
        ),
        ("a.jsonl", '{"text": "so fine", "label": "good"}\n', ""),
    ],
)
def test_the_user_is_told_how_a_table_is_read(name: str, text: str, description: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert describe_columns(str(tmp_path / name), DataConfig()) == description
