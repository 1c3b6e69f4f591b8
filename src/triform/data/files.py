r"""Open files and read them as lines or blocks of text.

Files are streamed, so they may be larger than memory. Lines end at "\n" only; U+0085 and U+2028 are text.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, cast

from triform.errors import DataError

FileKind = Literal["txt", "csv", "tsv", "jsonl", "builtin"]
KIND_BY_SUFFIX: dict[str, FileKind] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
T = TypeVar("T")
BUILTIN_PREFIX = "builtin:"
MIN_CACHED_BYTES = 1 << 22  # bytes; results for smaller files are not worth caching
MAX_LINE_BYTES = 1 << 26  # bytes of a line or of a row of a table
BLOCK_SIZE = 1 << 20  # bytes read at once; a chunk of text has about as many characters


def detect_kind(path: str, remedy: str = "") -> FileKind:
    """Return the format of an existing file by its name.

    Args:
        path: A file, or `builtin:NAME`.
        remedy: What the message adds if the format is unknown.

    Raises:
        DataError: The file is missing, or its name does not tell the format.
    """
    if path.startswith(BUILTIN_PREFIX):
        return "builtin"
    with open_bytes(path):
        pass  # a missing file is reported before an unknown suffix
    if kind := kind_from_name(path):
        return kind
    known_suffixes = ", ".join(KIND_BY_SUFFIX)
    suffix = _suffix(path)
    problem = f"unknown file format {suffix!r}" if suffix else "the file name has no suffix"
    raise DataError(
        f"{problem}; supported formats are {known_suffixes}, each also with .gz added{remedy}", path=path
    )


def kind_from_name(path: str) -> FileKind | None:
    """Return the format that the suffix of a file indicates, or None."""
    return KIND_BY_SUFFIX.get(_suffix(path))


def _suffix(path: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name ends in .gz. Errors become a DataError."""
    _refuse_special_file(path)
    try:
        if path.lower().endswith(".gz"):
            with gzip.open(path, "rb") as unzipped:
                yield cast(BinaryIO, unzipped)
        else:
            with Path(path).open("rb") as file:
                yield file
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except IsADirectoryError:
        raise DataError("this is a folder; name a file in it", path=path) from None
    except PermissionError:
        raise DataError("the file cannot be read: permission denied", path=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"the gzip file is damaged or incomplete ({error}); copy or compress it again", path=path
        ) from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", path=path) from None


def _refuse_special_file(path: str) -> None:
    """Refuse pipes and devices, which may never end and cannot be read twice."""
    if "\0" in path:
        raise DataError("a file name cannot contain a NUL character", path=path)
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
    results: dict[tuple[str, int, int, int], T] = {}

    @wraps(compute)
    def memoized(path: str) -> T:
        if (size := file_size(path)) < MIN_CACHED_BYTES:
            return compute(path)
        file_stat = Path(path).stat()
        key = (path, size, file_stat.st_mtime_ns, file_stat.st_ino)
        if key not in results:
            results[key] = compute(path)
        return results[key]

    return memoized


def file_size(path: str) -> int:
    """Return the size of a file in bytes, compressed or not; 0 if it is not a file."""
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0


@memoize_by_file
def count_characters(path: str) -> int:
    """Count the characters of a text file."""
    return sum(map(len, iter_text_blocks(path)))


@memoize_by_file
def content_sha256(path: str) -> str:
    """Return the SHA-256 digest of the uncompressed content, which does not depend on the compression."""
    hasher = hashlib.sha256()
    with open_bytes(path) as file:
        while raw := file.read(BLOCK_SIZE):
            hasher.update(raw)
    return hasher.hexdigest()
