r"""Bytes to text: opening files, lines, blocks, and what is said when that goes wrong.

Everything streams, so a file may be larger than memory. Lines end at "\n" only: U+0085 and U+2028 are text.
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
MIN_CACHED_BYTES = 1 << 22  # bytes of a file that takes no time worth saving
MAX_LINE_BYTES = 1 << 26  # bytes of a line, or of a row of a table
BLOCK_SIZE = 1 << 20  # bytes read at once, and about the characters of a piece


def detect_kind(path: str) -> FileKind:
    """What a path holds, told by its name; the file must be there."""
    if path.startswith(BUILTIN_PREFIX):
        return "builtin"
    with open_bytes(path):
        pass  # a missing file is the first thing to tell, whatever its name
    if kind := kind_from_name(path):
        return kind
    known_suffixes = ", ".join(KIND_BY_SUFFIX)
    suffix = _suffix(path)
    problem = f"ends in {suffix!r}" if suffix else "has no ending"
    raise DataError(
        f"{problem}, which does not say its format; known are {known_suffixes}, each also .gz", path=path
    )


def kind_from_name(path: str) -> FileKind | None:
    """The format that the name of a file says, or None."""
    return KIND_BY_SUFFIX.get(_suffix(path))


def _suffix(path: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """The file's bytes, unzipped where its name ends in .gz; what goes wrong becomes a DataError."""
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
        raise DataError("is a folder; give the file inside it", path=path) from None
    except PermissionError:
        raise DataError("may not be read: permission denied", path=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"is not a whole gzip file ({error}); copy or compress it again", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from None


def _refuse_special_file(path: str) -> None:
    """Pipes and devices need not end, and cannot be read twice; a pipe without a writer would be waited for."""
    if "\0" in path:
        raise DataError("no file has this name: it holds a NUL character", path=path)
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # opening it will say what is wrong
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise DataError(f"is {kind}, not a file; copy its content to a file", path=path)


def iter_byte_lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Lines with their ends, counted from 1, of which no more than `MAX_LINE_BYTES` bytes are ever held."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(
                f"has no line end within {MAX_LINE_BYTES >> 20} MiB, so it is not lines of text",
                path=path,
                line=number,
            )
        yield number, raw


def _utf8_error(path: str, line: int, raw: bytes) -> DataError:
    is_utf16 = line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    charset = "utf-16" if is_utf16 else "latin1"
    return DataError(f"is not UTF-8; convert it with `iconv -f {charset} -t utf-8`", path=path, line=line)


def iter_text_lines(path: str) -> Iterator[str]:
    """Lines with their ends, without a byte order mark."""
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
    r"""Lines counted from 1, without their ends ("\n" or "\r\n")."""
    for number, text in enumerate(iter_text_lines(path), 1):
        yield number, text.removesuffix("\n").removesuffix("\r")


def iter_text_blocks(path: str) -> Iterator[str]:
    """The file's text as it is, without a byte order mark, in blocks cut anywhere."""
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
    """Lines of a file; a last one without an end counts."""
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
    """What was found in a large file is remembered as long as the file stays as it is."""
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
    """Bytes of a file, zipped or not; 0 for what is no file."""
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0


@memoize_by_file
def count_characters(path: str) -> int:
    """Characters of a text file."""
    return sum(map(len, iter_text_blocks(path)))


@memoize_by_file
def content_sha256(path: str) -> str:
    """sha256 of the content, unzipped, so that compressing a file again does not change it."""
    hasher = hashlib.sha256()
    with open_bytes(path) as file:
        while raw := file.read(BLOCK_SIZE):
            hasher.update(raw)
    return hasher.hexdigest()
