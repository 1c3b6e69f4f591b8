r"""Open files and addresses, and read them as lines or blocks of text.

A path is a local file, or an address such as `s3://bucket/file.jsonl.zst`, which fsspec reads. Files are streamed,
so they may be larger than memory. Lines end at "\n" only; U+0085 and U+2028 are text.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast

from triform.config.merging import is_url
from triform.data.folders import COMPRESSION_SUFFIXES, SHARDS_MANIFEST, folder_kind, list_members
from triform.data.remote import open_remote, remote_version
from triform.errors import DataError, require_package

FileKind = Literal["txt", "csv", "tsv", "jsonl", "parquet", "arrow", "dataset", "texts", "builtin"]
KIND_BY_SUFFIX: dict[str, FileKind] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
RECORD_KINDS = ("jsonl", "parquet", "arrow", "dataset")  # rows are objects whose keys are the names of columns
UNSUPPORTED_COMPRESSIONS = (".7z", ".br", ".bz2", ".lz4", ".xz", ".z", ".zip")
T = TypeVar("T")
_check: ContextVar[Callable[[], None] | None] = ContextVar("check_reading", default=None)
BUILTIN_PREFIX = "builtin:"
MIN_CACHED_BYTES = 1 << 22  # bytes; results for smaller files are not worth caching
MAX_LINE_BYTES = 1 << 26  # bytes of a line or of a row of a table
BLOCK_SIZE = 1 << 20  # bytes read at once; a chunk of text has about as many characters


def detect_kind(path: str, remedy: str = "") -> FileKind:
    """Return the format of an existing file by its name.

    Args:
        path: A file, a folder of data, or `builtin:NAME`.
        remedy: What the message adds if the format is unknown.

    Raises:
        DataError: The file is missing, or its name does not tell the format.
    """
    if path.startswith(BUILTIN_PREFIX):
        return "builtin"
    if not is_url(path) and (kind_of_folder := folder_kind(path)):
        return kind_of_folder
    with open_bytes(path):
        pass  # a missing file is reported before an unknown suffix
    if kind := kind_from_name(path):
        return kind
    known_suffixes = ", ".join(KIND_BY_SUFFIX)
    suffix = format_suffix(path)
    noun = "compression" if suffix in UNSUPPORTED_COMPRESSIONS else "file format"
    problem = f"unknown {noun} {suffix!r}" if suffix else "the file name has no suffix"
    raise DataError(
        f"{problem}; supported formats are {known_suffixes}, each also with .gz or .zst added{remedy}", path=path
    )


def kind_from_name(path: str) -> FileKind | None:
    """Return the format of a folder of data, or the format that the suffix of a file indicates, or None."""
    return (None if is_url(path) else folder_kind(path)) or KIND_BY_SUFFIX.get(format_suffix(path))


def row_error(problem: str, path: str, line: int) -> DataError:
    """Return an error about a row of a table: a line of a text file, or a row of any other file."""
    units = {"parquet": "row", "arrow": "row", "dataset": "row", "texts": "file"}
    return DataError(problem, path=path, line=line, unit=units.get(kind_from_name(path) or "", "line"))


def format_suffix(path: str) -> str:
    """Return the suffix of a file name without that of the compression, in lower case."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSION_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: str, *, decompress: bool = True) -> Iterator[BinaryIO]:
    """Open a file or an address for reading.

    Args:
        path: The file.
        decompress: Decompress a file whose name ends in .gz or .zst.

    Raises:
        DataError: The file cannot be opened or read.
    """
    _refuse_special_file(path)
    try:
        with open_remote(path) if is_url(path) else Path(path).open("rb") as file:
            content, check = _decompress(file, path) if decompress else file, _check.get()
            yield content if check is None else cast(BinaryIO, _CheckedFile(content, check))
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except IsADirectoryError:
        if (Path(path) / SHARDS_MANIFEST).is_file():
            raise DataError(
                "this folder contains token shards, which only `triform train generate --data` reads; give a file",
                path=path,
            ) from None
        raise DataError("this is a folder; name a file in it", path=path) from None
    except PermissionError:
        raise DataError("the file cannot be read: permission denied", path=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"the gzip file is damaged or incomplete ({error}); copy or compress it again", path=path
        ) from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", path=path) from None


@contextmanager
def check_reading(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before every line or block that is read inside the `with` block; it may raise an error."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


class _CheckedFile:
    def __init__(self, file: BinaryIO, check: Callable[[], None]) -> None:
        self._file, self._check = file, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readline(self, size: int = -1) -> bytes:
        self._check()
        return self._file.readline(size)

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._file.read(size)


def _decompress(file: BinaryIO, path: str) -> BinaryIO:
    """Return the decompressed content of a file whose name indicates a compression."""
    if path.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if path.lower().endswith(".zst"):
        require_package("pyarrow", extra="arrow", purpose=f"{path}: a .zst file")
        from pyarrow import CompressedInputStream

        return BufferedReader(CompressedInputStream(file, "zstd"), BLOCK_SIZE)
    return file


def _refuse_special_file(path: str) -> None:
    """Refuse pipes and devices, which may never end and cannot be read twice."""
    if "\0" in path:
        raise DataError("a file name cannot contain a NUL character", path=path)
    if is_url(path):
        return
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # opening the file reports the error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise DataError(f"this is {kind}, not a file; copy its content to a file", path=path)


def iter_byte_lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their ends, counted from 1. A line has at most `MAX_LINE_BYTES` bytes."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(
                f"no line end within {MAX_LINE_BYTES >> 20} MiB; this is not a text file with lines",
                path=path,
                line=number,
            )
        yield number, raw


def _utf8_error(path: str, line: int, raw: bytes) -> DataError:
    is_utf16 = line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    charset = "utf-16" if is_utf16 else "latin1"
    return DataError(f"the text is not UTF-8; convert it with `iconv -f {charset} -t utf-8`", path=path, line=line)


def iter_text_lines(path: str) -> Iterator[str]:
    """Yield lines with their ends, without a byte order mark."""
    with open_bytes(path) as file:
        for number, raw in iter_byte_lines(file, path):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise _utf8_error(path, number, raw) from None
            if text:
                yield text


def iter_numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    r"""Yield lines counted from 1, without their ends ("\n" or "\r\n")."""
    for number, text in enumerate(iter_text_lines(path), 1):
        yield number, text.removesuffix("\n").removesuffix("\r")


def iter_text_blocks(path: str) -> Iterator[str]:
    """Yield the unchanged text of a file in blocks, without a byte order mark. Blocks may end anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, is_first = 1, True
    with open_bytes(path) as file:
        while True:
            raw = file.read(BLOCK_SIZE)
            try:
                text = decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                error_line = line + error.object.count(b"\n", 0, error.start)
                raise _utf8_error(path, error_line, error.object) from None
            line += text.count("\n")
            if is_first and text:
                text, is_first = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not raw:
                return


def count_lines(path: str) -> int:
    """Count the lines of a file, including a last line without an end."""
    lines, last_byte = 0, b"\n"
    with open_bytes(path) as file:
        start = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        if start:
            lines, last_byte = start.count(b"\n"), start[-1:]
        while raw := file.read(BLOCK_SIZE):
            lines += raw.count(b"\n")
            last_byte = raw[-1:]
    return lines + (last_byte != b"\n")


def memoize_by_file(compute: Callable[[str], T]) -> Callable[[str], T]:
    """Cache the result of a function of a large file until the file changes."""
    results: dict[tuple[str, int, str], T] = {}

    @wraps(compute)
    def memoized(path: str) -> T:
        size, version = file_version(path)
        if size < MIN_CACHED_BYTES:
            return compute(path)
        if (path, size, version) not in results:
            results[path, size, version] = compute(path)
        return results[path, size, version]

    return memoized


def file_version(path: str) -> tuple[int, str]:
    """Return the size of a file or folder in bytes, and a text that changes with it; 0 if there is none."""
    if is_url(path):
        return remote_version(path)
    try:
        if members := list_members(path):
            versions = [file_version(str(member)) for member in members]
            return sum(size for size, _ in versions), _digest_texts(map(str, zip(members, versions, strict=True)))
        file_stat = Path(path).stat()
    except (OSError, ValueError):
        return 0, ""
    return file_stat.st_size, f"{file_stat.st_mtime_ns} {file_stat.st_ino}"


def file_size(path: str) -> int:
    """Return the size of a file or folder in bytes, compressed or not; 0 if there is none."""
    return file_version(path)[0]


@memoize_by_file
def count_characters(path: str) -> int:
    """Count the characters of a text file."""
    return sum(map(len, iter_text_blocks(path)))


@memoize_by_file
def content_sha256(path: str) -> str:
    """Return the SHA-256 digest of the uncompressed content, which does not depend on the compression.

    That of a folder also depends on the names of its files, which may be labels.
    """
    if not is_url(path) and (members := list_members(path)):
        return _digest_texts(f"{file.relative_to(path)} {content_sha256(str(file))}" for file in members)
    hasher = hashlib.sha256()
    with open_bytes(path) as file:
        while raw := file.read(BLOCK_SIZE):
            hasher.update(raw)
    return hasher.hexdigest()


def _digest_texts(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="surrogateescape")).hexdigest()
