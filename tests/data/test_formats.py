"""Compressed files, Parquet files and files at addresses: read like plain local files, with the same errors."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from triform.config import DataConfig
from triform.config.merging import absolute_path
from triform.data import files, readers
from triform.data.inputs import read_inputs
from triform.data.preview import guess_task, preview_data
from triform.errors import ConfigError, DataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [("a good film", "pos"), ("ein schlechter Film – ja", "neg"), ("", "pos")]
JSON_LINES = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS).encode()


def compress_zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def write_parquet(path: Path, columns: dict[str, list[object]], **options: object) -> str:
    parquet.write_table(pyarrow.table(columns), path, **options)
    return str(path)


def read_labelled(path: str, **settings: str) -> list[tuple[str, str]]:
    return [(row.text, row.label) for row in readers.read_rows(path, DataConfig(**settings))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".jsonl.gz", gzip.compress), (".jsonl.zst", compress_zstd), (".JSONL.ZST", compress_zstd)],
)
def test_compressed_rows_equal_plain_ones(suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(compress(JSON_LINES))
    assert read_labelled(str(path)) == ROWS
    assert files.content_sha256(str(path)) == files.content_sha256(_write(tmp_path / "rows.jsonl", JSON_LINES))


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_parquet_file_is_read_like_json_lines(tmp_path: Path) -> None:
    texts, labels = map(list, zip(*ROWS, strict=True))
    path = write_parquet(tmp_path / "rows.parquet", {"id": [1, 2, 3], "text": texts, "label": labels})
    assert read_labelled(path) == ROWS
    assert guess_task(path) == "classify"
    assert preview_data("classify", path, DataConfig()).roles == ("", "text", "label")
    assert read_inputs(path, "classify", DataConfig()).texts == texts
    assert [chunk.text for chunk in readers.read_chunks(path, DataConfig())] == texts
    pairs = write_parquet(tmp_path / "pairs.parquet", {"fr": ["un"], "en": ["one"]})
    assert [(pair.source, pair.target) for pair in readers.read_pairs(pairs, DataConfig(source_column="en"))] == [
        ("one", "un")
    ]


def test_addresses_are_read_like_files() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/corpus/rows.jsonl.zst", compress_zstd(JSON_LINES))
    memory.pipe_file("/corpus/book.txt", b"\xef\xbb\xbfone\ntwo\n")
    assert read_labelled("memory://corpus/rows.jsonl.zst") == ROWS
    assert (
        "".join(chunk.text for chunk in readers.read_chunks("memory://corpus/book.txt", DataConfig()))
        == "one\ntwo\n"
    )
    assert files.file_size("memory://corpus/book.txt") == 11
    assert absolute_path("memory://corpus/book.txt") == "memory://corpus/book.txt"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl.zst", b"no zstd", "cannot be read: ZSTD"),
        ("rows.jsonl.zst", compress_zstd(JSON_LINES * 1000)[:60], "cannot be read: Truncated"),
        ("rows.jsonl.zst", b"", "the file is empty"),
        ("rows.jsonl.zst", compress_zstd(b'{"text": "\xff"}'), "line 1: the text is not UTF-8"),
        ("rows.parquet", b"no parquet", "the Parquet file is damaged or is not one"),
        ("rows.jsonl.bz2", b"", "unknown compression '.bz2'; .* with .gz or .zst added"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        read_labelled(_write(tmp_path / name, content))


def test_a_parquet_file_without_the_column_names_its_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", {"body": ["a"], "stars": [3]})
    with pytest.raises(DataError, match=r"'prose'.*data\.text_column to one of 'stars', 'body'"):
        read_labelled(path, text_column="prose")
    assert read_labelled(path, text_column="body", label_column="stars") == [("a", "3")]
    with pytest.raises(DataError, match="the file is empty"):
        read_labelled(write_parquet(tmp_path / "none.parquet", {"text": [], "label": []}))
    with pytest.raises(DataError, match="row 2: expected a text under 'text', found null"):
        list(readers.read_chunks(write_parquet(tmp_path / "null.parquet", {"text": ["a", None]}), DataConfig()))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://none/rows.jsonl", "no such file"),
        ("nonsense://rows.jsonl", "unknown protocol 'nonsense'"),
        ("file:///nowhere/rows.jsonl", "no such file"),
    ],
)
def test_an_address_that_cannot_be_read_is_named(url: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^{url}: {message}"):
        read_labelled(url)


def test_errors_of_a_connection_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/corpus/broken.jsonl", JSON_LINES)

    class Unreachable(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise Unreachable("connection refused")

    monkeypatch.setattr(type(memory.open("/corpus/broken.jsonl")), "read", fail)
    with pytest.raises(DataError, match="cannot be read: Unreachable: connection refused"):
        read_labelled("memory://corpus/broken.jsonl")
    monkeypatch.setattr(type(memory), "open", fail)
    with pytest.raises(DataError, match=r"the address cannot be reached \(connection refused\)"):
        read_labelled("memory://corpus/broken.jsonl")
    monkeypatch.setattr(type(memory), "open", lambda *_, **__: __import__("no_such_package"))
    with pytest.raises(DataError, match="memory:// needs another package"):
        read_labelled("memory://corpus/broken.jsonl")


def test_a_missing_pyarrow_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("rows.jsonl.zst", "rows.parquet"):
        with pytest.raises(ConfigError, match=rf"{name}: a \S+ file needs pyarrow .*\[arrow\]"):
            read_labelled(_write(tmp_path / name, b""))


def test_memory_does_not_grow_with_a_compressed_or_parquet_file(tmp_path: Path) -> None:
    text = "The same sentence again and again. " * 30
    for name in ("long.jsonl.zst", "long.parquet"):
        peaks = []
        for n_rows in (2_000, 20_000):
            path = tmp_path / f"{n_rows}.{name}"
            if path.suffix == ".zst":
                path.write_bytes(compress_zstd((json.dumps({"text": text}) + "\n").encode() * n_rows))
            else:
                write_parquet(path, {"text": [text] * n_rows}, row_group_size=500)
            tracemalloc.start()
            assert sum(1 for _ in readers.read_chunks(str(path), DataConfig())) == n_rows
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 1.5 * peaks[0] + (1 << 20)
