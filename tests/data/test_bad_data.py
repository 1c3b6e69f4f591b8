"""What a user reads when a file is not what it should be: the file, the line, the remedy."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.data.readers import (
    count_units,
    fingerprint,
    read_aligned,
    read_chunks,
    read_lines,
    read_pairs,
    read_rows,
    validate_aligned,
)
from triform.errors import ConfigError, DataError

DATA_CONFIG = DataConfig()


def load_rows(path: str, data_config: DataConfig = DATA_CONFIG) -> object:
    return list(read_rows(path, data_config))


def load_pairs(path: str) -> object:
    return list(read_pairs(path, DATA_CONFIG))


def load_chunks(path: str) -> object:
    return list(read_chunks(path, DATA_CONFIG))


def load_lines(path: str) -> object:
    return list(read_lines(path))


def load_count(path: str) -> object:
    return count_units(path, DATA_CONFIG)


def write_file(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def error_message(read: Callable[[str], object], path: str) -> str:
    """What is said, without the place; the place is checked to begin with the path."""
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.path == path
    assert str(caught.value).startswith(path)
    return str(caught.value)[len(path) :]


@pytest.mark.parametrize("read", [load_rows, load_pairs, load_chunks, load_lines, load_count, fingerprint])
def test_a_missing_file_a_folder_and_a_broken_zip_are_told_apart(
    tmp_path: Path, read: Callable[[str], object]
) -> None:
    assert error_message(read, str(tmp_path / "none.csv")) == ": no such file"
    assert error_message(read, str(tmp_path)) == ": this is a folder; name a file in it"
    compressed = gzip.compress(b"text,label\n" + bytes(range(65, 91)) * 1000)
    for content in (compressed[:-12], b"text,label\na,b\n", compressed[:20] + b"\xff\xff" + compressed[22:]):
        path = write_file(tmp_path, "a.csv.gz", content)
        assert error_message(read, path).startswith(": the gzip file is damaged or incomplete")


@pytest.mark.parametrize("read", [load_rows, load_pairs, load_chunks, load_lines, load_count])
def test_a_file_that_may_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object]
) -> None:
    path = write_file(tmp_path, "a.csv", "text,label\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read anything, so the refusal is played
    assert error_message(read, path) == ": the file cannot be read: permission denied"


@pytest.mark.parametrize("suffix", ["", ".pdf", ".gz", ".txt.zip"])
def test_an_unknown_ending_names_the_known_ones(tmp_path: Path, suffix: str) -> None:
    message = error_message(load_rows, write_file(tmp_path, "data" + suffix, "text,label\na,b\n"))
    assert (
        ".txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .arrow, .feather, each also with .gz or .zst added"
        in message
    )


@pytest.mark.parametrize(
    ("name", "content", "readers"),
    [
        ("a.txt", b"", (load_chunks, load_lines, load_count)),
        ("a.txt", b"\xef\xbb\xbf", (load_chunks, load_count)),
        ("a.csv", b"", (load_rows, load_pairs, load_chunks, load_count)),
        ("a.tsv", b"\n\r\n\n", (load_rows, load_pairs, load_chunks, load_count)),
        ("a.jsonl", b"\n \n", (load_rows, load_pairs, load_chunks, load_count)),
        ("a.csv", b"text,label\n", (load_rows, load_chunks, load_count)),
        ("a.tsv", b"source\ttarget", (load_pairs,)),
    ],
)
def test_an_empty_file_is_not_a_data_set(
    tmp_path: Path, name: str, content: bytes, readers: Iterable[Callable[[str], object]]
) -> None:
    path = write_file(tmp_path, name, content)
    for read in readers:
        assert error_message(read, path).startswith(": the file is empty")


@pytest.mark.parametrize("filler", [1, 60_000])
def test_text_that_is_not_utf8_is_told_with_its_line(tmp_path: Path, filler: int) -> None:
    remedy = "the text is not UTF-8; convert it with `iconv -f latin1 -t utf-8`"
    start = "text,label\n" + "some words of filling,x\n" * filler
    raw = start.encode() + "café,y\n".encode("latin1") + b"more,z\n"
    location = f", line {filler + 2}: "
    for name, read in [("a.csv", load_rows), ("a.txt", load_chunks), ("a.txt", load_lines), ("a.txt", load_count)]:
        assert error_message(read, write_file(tmp_path, name, raw)) == location + remedy
    truncated = write_file(tmp_path, "b.txt", "one\ncafé".encode()[:-1])
    assert error_message(load_chunks, truncated) == ", line 2: " + remedy
    utf16 = write_file(tmp_path, "c.txt", "one\ntwo\n".encode("utf-16"))
    for read in (load_chunks, load_lines):
        assert (
            error_message(read, utf16)
            == ", line 1: the text is not UTF-8; convert it with `iconv -f utf-16 -t utf-8`"
        )


def test_a_column_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "id,label,text\n1,x,a\n2,y,b\n")
    for data_config, message in [
        (DataConfig(text_column="txet"), "no column 'txet'; set data.text_column to one of 'text', "),
        (DataConfig(label_column="labels"), "no column 'labels'; set data.label_column to one of 'label', "),
        (
            DataConfig(text_column="4"),
            "no column 4; set data.text_column to a number from 1 to 3 ('id', 'label', 'text')",
        ),
        (DataConfig(text_column="0"), "no column 0; set data.text_column to a number from 1 to 3"),
        (DataConfig(text_column="2", label_column="label"), "column 2 cannot be both text and label"),
    ]:
        fragment = error_message(lambda path, data_config=data_config: load_rows(path, data_config), path)
        assert fragment.startswith(": " + message)
        assert "set data." in fragment


def test_names_without_a_header_are_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "text,label\na,b\n")
    with pytest.raises(ConfigError, match=r"data\.text_column=text is a name, but data\.header=no"):
        load_rows(path, DataConfig(text_column="text", header="no"))


def test_a_row_of_the_wrong_width_is_told_with_its_line(tmp_path: Path) -> None:
    short = write_file(tmp_path, "a.tsv", "label\ttext\n0\ta\n1\n")
    assert error_message(load_rows, short) == (
        ", line 3: expected at least 2 columns, found 1; separate the columns with a tab"
    )
    wide = write_file(tmp_path, "a.csv", 'text,label\n"a\nb",x\nwell, yes,y\n')
    assert error_message(load_rows, wide) == (
        ", line 4: expected 2 columns, found 3; quote texts that contain commas"
    )
    trailing = write_file(tmp_path, "b.csv", "text,label\na,x,,\nb,y\n")  # a spreadsheet's empty cells do no harm
    assert len(list(read_rows(trailing, DATA_CONFIG))) == 2


def test_a_quote_left_open_is_told_where_it_opens(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'text,label\na,x\n"b,y\nc,z\n')
    assert error_message(load_rows, path).startswith(", line 3: invalid CSV (unexpected end of data); quote")


def test_an_empty_label_is_told_with_its_line(tmp_path: Path) -> None:
    for name, content in [
        ("a.csv", "text,label\na,x\nb, \n"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "b", "label": ""}\n'),
    ]:
        message = error_message(load_rows, write_file(tmp_path, name, content))
        assert message == ", line 3: the label is empty; fill it in or remove the row"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            '{"text": "b", "label": "y"',
            "the line is not JSON (Expecting ',' delimiter); each line must be one object",
        ),
        ("[1, 2]", 'the line is not a JSON object like {"text": "..."}'),
        ("[" * 100_000, "the line is not JSON ("),
        ('{"label": "y"}', "no key 'text'; the keys are 'label'"),
        ('{"text": "b"}', "no key 'label'; the keys are 'text'"),
        ('{"text": 5, "label": "y"}', "expected a text under 'text', found 5"),
        ('{"text": null, "label": "y"}', "expected a text under 'text', found null"),
        ('{"text": "b", "label": null}', "expected a text or a number under 'label', found null"),
        ('{"text": "b", "label": ["y"]}', "expected a text or a number under 'label', found [\"y\"]"),
        ('{"text": "\\ud83d", "label": "y"}', "the text under 'text' contains half of a surrogate pair"),
    ],
)
def test_a_bad_json_line_is_told_with_its_line(tmp_path: Path, bad: str, message: str) -> None:
    path = write_file(tmp_path, "a.jsonl", f'{{"text": "a", "label": "x"}}\n{bad}\n')
    assert error_message(load_rows, path).startswith(", line 2: " + message)


def test_json_without_a_known_key_names_those_there_are(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.jsonl", '{"words": "a", "mood": "x"}\n')
    assert (
        error_message(load_rows, path)
        == ": no key is named like 'text'; set data.text_column to one of 'words', 'mood'"
    )
    data_config = DataConfig(text_column="word", label_column="mood")
    assert error_message(lambda path: load_rows(path, data_config), path).startswith(
        ": no key 'word'; set data.text_column to one of 'words', "
    )
    assert error_message(load_pairs, write_file(tmp_path, "b.jsonl", '{"en": "a"}\n')).startswith(
        ": the object has fewer than two keys"
    )


def test_one_column_is_too_few(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "some:words\nother:words\n")
    assert error_message(load_rows, path).startswith(": expected a text and a label column, found only one column")
    assert error_message(load_pairs, path).startswith(
        ": expected a source and a target column, found only one column"
    )


def test_a_text_file_has_no_labels_and_no_pairs(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "words\n")
    assert error_message(load_rows, path).startswith(
        ": a .txt file has no labels; use a .csv, .tsv, .jsonl or .parquet"
    )
    assert error_message(load_pairs, path).startswith(
        ": a .txt file has no pairs; use a .csv, .tsv, .jsonl or .parquet"
    )
    source = write_file(tmp_path, "train.en", "words\n")
    assert error_message(load_pairs, source).endswith(" added; write two aligned files as SOURCE,TARGET")


@pytest.mark.parametrize(("left", "right"), [("a\nb\nc", "a\nb\n"), ("a\n", "a\n\n"), ("", "a\n"), ("a", "")])
def test_aligned_files_of_unequal_length_name_both_counts(tmp_path: Path, left: str, right: str) -> None:
    source, target = write_file(tmp_path, "x.en", left), write_file(tmp_path, "x.fr", right)
    counts = [text.count("\n") + (not text.endswith("\n") and bool(text)) for text in (left, right)]
    message = f"{source} has {counts[0]} lines but {target} has {counts[1]}; the files must match line by line"
    for read in (validate_aligned, lambda *paths: list(read_aligned(*paths))):
        with pytest.raises(DataError) as caught:
            read(source, target)
        assert str(caught.value) == message


def test_two_empty_aligned_files_are_empty(tmp_path: Path) -> None:
    source, target = write_file(tmp_path, "x.en", ""), write_file(tmp_path, "x.fr", b"\xef\xbb\xbf")
    assert error_message(lambda path: validate_aligned(path, target), source) == ": the file is empty"
    assert error_message(lambda path: list(read_aligned(path, target)), source) == ": the file is empty"


@pytest.mark.parametrize("read", [load_rows, load_pairs, load_chunks, load_lines, load_count, fingerprint])
def test_unknown_builtin_names_offer_the_known_ones(read: Callable[[str], object]) -> None:
    assert error_message(read, "builtin:novels") == (
        ": no such built-in set; choose from builtin:numbers, builtin:reviews, builtin:sentences, builtin:stories"
    )
    assert "builtin:stories/train, builtin:stories/valid, builtin:stories/test" in error_message(
        read, "builtin:stories/dev"
    )


def test_the_builtin_text_of_earlier_versions_names_its_successor() -> None:
    for split in ("", "/valid"):
        message = error_message(load_chunks, f"builtin:topics{split}")
        assert message == f": this set was replaced by builtin:stories{split}"


def test_a_builtin_set_of_another_task_names_the_right_one() -> None:
    assert error_message(load_rows, "builtin:stories") == ": this set is not for classify; use builtin:reviews"
    assert error_message(load_pairs, "builtin:reviews") == ": this set is not for translate; use builtin:numbers"
    with pytest.raises(DataError, match=r"use it as data\.train"):
        validate_aligned("builtin:numbers", "builtin:numbers")
