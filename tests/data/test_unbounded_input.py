"""Input without an end: lines, rows and files that would fill memory or be waited for are refused with a line."""

from __future__ import annotations

import gzip
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from triform.config import DataConfig
from triform.config.settings import read_settings
from triform.data import files, tables
from triform.data.files import content_sha256, detect_kind
from triform.data.inputs import make_unique, read_inputs
from triform.data.readers import read_aligned, read_chunks, read_lines, read_pairs, read_rows
from triform.errors import ConfigError, DataError

READERS: dict[str, Callable[[str], Iterable[object]]] = {
    "rows": lambda path: read_rows(path, DataConfig()),
    "pairs": lambda path: read_pairs(path, DataConfig()),
    "lines": read_lines,
    "aligned": lambda path: read_aligned(path, path),
    "inputs": lambda path: read_inputs(path, "classify", DataConfig()).texts,
    "pieces": lambda path: read_chunks(path, DataConfig()),
}


@pytest.mark.parametrize("name", ["bomb.csv.gz", "bomb.tsv.gz", "bomb.jsonl.gz", "bomb.txt.gz"])
def test_a_line_of_200_million_characters_in_a_small_file_is_refused_without_being_held(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(
            b'{"text": "a", "label": "b"}\n'
            if "jsonl" in name
            else b"text,label\n"
            if "csv" in name
            else b"text\tlabel\n"
        )
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    assert path.stat().st_size < 2_000_000
    read = READERS["inputs" if ".txt" in name else "rows"]
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb.*, line \d: no line end within 64 MiB"):
        list(read(str(path)))
    assert tracemalloc.get_traced_memory()[1] < 300 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("unit", ['"a\n",', '"a\nb\n'])
def test_a_csv_row_that_never_ends_is_refused(unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2 << 20)
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 2 << 20)
    path = tmp_path / "open.csv"
    path.write_text("text,label\n" + (unit * 1_000_000 if "," in unit else unit + "b\n" * 2_000_000))
    with pytest.raises(DataError, match=r"line 2: invalid CSV .a row has more than 2 million characters"):
        list(read_rows(str(path), DataConfig()))


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are POSIX")
@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_refused_and_not_waited_for(reader: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(
            DataError, match=r"is a (pipe|device or a socket), not a file; copy its content to a file$"
        ):
            list(READERS[reader](str(path)))


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are POSIX")
def test_settings_are_not_read_from_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: it is a folder, a pipe or a device"):
            read_settings(path)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    for read in (detect_kind, content_sha256):
        with pytest.raises(DataError, match="a file name cannot contain a NUL character"):
            read("a\0b.csv")


def test_a_column_number_of_thousands_of_digits_is_one_that_the_table_lacks(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "a,b\nc,d\n" * 5)
    for name in ("text_column", "label_column"):
        with pytest.raises(DataError, match=r"no column 9{40}; set data\.\w+ to a number from 1 to 2"):
            list(read_rows(str(path), DataConfig(**{name: "9" * 5000})))


def test_a_hundred_thousand_columns_of_one_name_are_numbered_without_delay() -> None:
    assert make_unique([""] * 100_000)[-1] == "_100000"


def test_a_message_lists_some_of_very_many_columns(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"name{n}" for n in range(5000)) + "\n" + "1," * 4999 + "1\n")
    with pytest.raises(DataError, match="no column 'colour'") as refused:
        list(read_rows(str(path), DataConfig(text_column="colour")))
    assert len(str(refused.value)) < 1500
