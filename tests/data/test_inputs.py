"""Texts to predict: tables are read as for training, without labels or targets, and their rows are kept."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from triform.config import DataConfig, TaskName
from triform.data.inputs import inputs_from_texts, make_unique, read_inputs
from triform.errors import DataError

DATA_CONFIG = DataConfig()


def write_file(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix.lower() == ".gz" else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'id,text\n7,"one, two"\n8,three\n'),
        ("a.csv.gz", 'id,text\n7,"one, two"\n8,three\n'),
        ("a.tsv", "id\ttext\n7\tone, two\n8\tthree\n"),
        ("a.jsonl", '{"id": "7", "text": "one, two"}\n{"id": "8", "text": "three"}\n'),
        ("A.JSONL.GZ", '{"id": "7", "text": "one, two"}\n{"id": "8", "text": "three"}\n'),
    ],
)
def test_the_text_column_of_a_table_without_labels_is_read(tmp_path: Path, name: str, text: str) -> None:
    inputs = read_inputs(write_file(tmp_path / name, text), "classify", DATA_CONFIG)
    assert inputs.texts == ["one, two", "three"]
    assert inputs.column_names == ["id", "text"]
    assert inputs.rows == [{"id": "7", "text": "one, two"}, {"id": "8", "text": "three"}]
    assert inputs.column == "text"
    assert "'text'" in inputs.description


@pytest.mark.parametrize(
    ("table", "task", "texts"),
    [
        ("text,label\na b,good\nc d,bad\n", "classify", ["a b", "c d"]),
        ("label,review\ngood,a b\nbad,c d\n", "classify", ["a b", "c d"]),
        ("text\na b\nc d\n", "classify", ["a b", "c d"]),
        ("id,phrase\n1,a b\n2,c d\n", "classify", ["a b", "c d"]),  # numbers below a word: a header
        ("1,a b\n2,c d\n", "classify", ["a b", "c d"]),
        ("a b\nc d\n", "classify", ["a b", "c d"]),
        ("id,text\n1,a b\n2,c d\n", "generate", ["a b", "c d"]),
        ("en,fr\na b,x\nc d,y\n", "translate", ["a b", "c d"]),
        ("target,source\nx,a b\ny,c d\n", "translate", ["a b", "c d"]),
        ("source\na b\nc d\n", "translate", ["a b", "c d"]),
        ("id,text\n1,a b\n2,c d\n", "translate", ["a b", "c d"]),
        ("a b,x\nc d,y\n", "translate", ["a b", "c d"]),
        ("no\nit is\n", "translate", ["no", "it is"]),  # a word of a text, and not Norwegian
    ],
)
def test_headers_and_columns_are_found_as_for_training(
    tmp_path: Path, table: str, task: TaskName, texts: list[str]
) -> None:
    inputs = read_inputs(write_file(tmp_path / "a.csv", table), task, DATA_CONFIG)
    assert inputs.texts == texts
    header = table.splitlines()[0].split(",")
    assert inputs.column_names == header or "no header" in inputs.description


def test_columns_without_a_header_get_names(tmp_path: Path) -> None:
    inputs = read_inputs(write_file(tmp_path / "a.tsv", "1\ta b\tx\n2\tc d\n"), "classify", DATA_CONFIG)
    assert inputs.rows == [
        {"column_1": "1", "text": "a b", "column_3": "x"},
        {"column_1": "2", "text": "c d", "column_3": ""},
    ]
    assert inputs.description.endswith("no header, texts in column 2")


def test_a_column_is_chosen_by_name_or_number(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", "text,other\na,b\n")
    assert read_inputs(path, "classify", DataConfig(text_column="Other")).texts == ["b"]
    assert read_inputs(path, "classify", DataConfig(text_column="2")).texts == ["b"]
    assert read_inputs(path, "translate", DataConfig(source_column="other")).texts == ["b"]
    assert read_inputs(path, "classify", DataConfig(label_column="gone")).texts == ["a"]
    with pytest.raises(DataError, match=r"a\.csv: no column 'gone'; set data\.text_column to one of .*'text'"):
        read_inputs(path, "classify", DataConfig(text_column="gone"))


def test_the_columns_of_the_training_table_are_known_by_name(tmp_path: Path) -> None:
    rows = "".join(f"a b {n},{'xy'[n % 2]}\n" for n in range(6))
    trained_config = DataConfig(train=write_file(tmp_path / "train.csv", f"phrase,mood\n{rows}"))
    one_column = write_file(tmp_path / "one.csv", "phrase\nc d\n")
    more_columns = write_file(tmp_path / "more.jsonl", '{"remark": "much longer than that", "phrase": "c d"}\n')
    assert read_inputs(one_column, "classify", trained_config).texts == ["c d"]
    assert read_inputs(more_columns, "classify", trained_config).texts == ["c d"]
    (tmp_path / "train.csv").unlink()
    inputs = read_inputs(one_column, "classify", trained_config)
    assert inputs.texts == ["phrase", "c d"]
    assert "no header" in inputs.description  # and that is said
    pairs_config = DataConfig(train=write_file(tmp_path / "pairs.csv", "en,fr\na,b\nc,d\n"))
    assert read_inputs(write_file(tmp_path / "en.csv", "en\nhi\n"), "translate", pairs_config).texts == ["hi"]


def test_every_value_of_an_object_is_kept_as_it_is(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "a.jsonl", '{"text": "a", "n": 1.5, "deep": {"x": [null]}}\n\n{"text": "b", "new": true}\n'
    )
    inputs = read_inputs(path, "generate", DATA_CONFIG)
    assert inputs.rows == [{"text": "a", "n": 1.5, "deep": {"x": [None]}}, {"text": "b", "new": True}]
    assert inputs.column_names == ["text", "n", "deep", "new"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "text,label\n", "the file is empty: it has a header but no rows"),
        ("a.csv", "id,text\n1,a\n2\n", "line 3: expected at least 2 columns, found 1"),
        (
            "a.tsv",
            "text,label\na,b\n",
            "the columns seem to be separated by ','; a .tsv file separates them by tabs",
        ),
        ("a.jsonl", '{"text": "a"}\n{"label": "b"}\n', "line 2: no key 'text'"),
        ("a.jsonl", '{"text": 3}\n', "line 1: expected a text under 'text', found 3"),
        ("a.jsonl", "{}\n", "no key is named like 'text'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(DataError) as raised:
        read_inputs(write_file(tmp_path / name, text), "classify", DATA_CONFIG)
    assert reason in str(raised.value)


def test_an_object_without_a_key_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a key for the source is needed"):
        read_inputs(write_file(tmp_path / "a.jsonl", "{}\n"), "translate", DATA_CONFIG)


def test_other_files_have_one_text_per_line(tmp_path: Path) -> None:
    for name in ("a.txt", "a", "a.en"):
        inputs = read_inputs(write_file(tmp_path / name, "text,label\n\na,b\n"), "translate", DATA_CONFIG)
        assert inputs == inputs_from_texts(["text,label", "", "a,b"], "translate")
        assert (inputs.column, inputs.description) == ("source", "")


def test_names_are_numbered_where_they_would_occur_twice() -> None:
    assert make_unique(["a", "a", "b", "a"]) == ["a", "a_2", "b", "a_3"]
    assert make_unique(["a", "b"], reserved=["a", "a_2"]) == ["a_3", "b"]
