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

Kind = Literal["txt", "csv", "tsv", "jsonl", "builtin"]
KINDS: dict[str, Kind] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
Found = TypeVar("Found")
BUILTIN = "builtin:"
SMALL = 1 << 22  # bytes of a file that takes no time worth saving
MAX_LINE_BYTES = 1 << 26  # bytes of a line, or of a row of a table
BLOCK = 1 << 20  # bytes read at once, and about the characters of a piece


def kind_of(path: str) -> Kind:
    """What a path holds, told by its name; the file must be there."""
    if path.startswith(BUILTIN):
        return "builtin"
    with opened(path):
        pass  # a missing file is the first thing to tell, whatever its name
    if kind := kind_by_name(path):
        return kind
    known = ", ".join(KINDS)
    last = _suffix(path)
    ending = f"ends in {last!r}" if last else "has no ending"
    raise DataError(f"{ending}, which does not say its format; known are {known}, each also .gz", path=path)


def kind_by_name(path: str) -> Kind | None:
    """The format that the name of a file says, or None."""
    return KINDS.get(_suffix(path))


def _suffix(path: str) -> str:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's bytes, unzipped where its name ends in .gz; what goes wrong becomes a DataError."""
    _refuse_special(path)
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


def _refuse_special(path: str) -> None:
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


def limited_lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
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


def _not_utf8(path: str, line: int, bad: bytes) -> DataError:
    wide = line == 1 and bad.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    charset = "utf-16" if wide else "latin1"
    return DataError(f"is not UTF-8; convert it with `iconv -f {charset} -t utf-8`", path=path, line=line)


def decoded_lines(path: str) -> Iterator[str]:
    """Lines with their ends, without a byte order mark."""
    with opened(path) as file:
        for number, raw in limited_lines(file, path):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise _not_utf8(path, number, raw) from None
            if text:
                yield text


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    r"""Lines counted from 1, without their ends ("\n" or "\r\n")."""
    for number, text in enumerate(decoded_lines(path), 1):
        yield number, text.removesuffix("\n").removesuffix("\r")


def decoded_blocks(path: str) -> Iterator[str]:
    """The file's text as it is, without a byte order mark, in blocks cut anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, first = 1, True
    with opened(path) as file:
        while True:
            raw = file.read(BLOCK)
            try:
                text = decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                at = line + error.object.count(b"\n", 0, error.start)
                raise _not_utf8(path, at, error.object) from None
            line += text.count("\n")
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not raw:
                return


def count_lines(path: str) -> int:
    """Lines of a file; a last one without an end counts."""
    lines, last = 0, b"\n"
    with opened(path) as file:
        start = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        if start:
            lines, last = start.count(b"\n"), start[-1:]
        while raw := file.read(BLOCK):
            lines += raw.count(b"\n")
            last = raw[-1:]
    return lines + (last != b"\n")


def once_a_file(find: Callable[[str], Found]) -> Callable[[str], Found]:
    """What was found in a large file is remembered as long as the file stays as it is."""
    known: dict[tuple[str, int, int, int], Found] = {}

    @wraps(find)
    def remembered(path: str) -> Found:
        if (size := size_of(path)) < SMALL:
            return find(path)
        about = Path(path).stat()
        key = (path, size, about.st_mtime_ns, about.st_ino)
        if key not in known:
            known[key] = find(path)
        return known[key]

    return remembered


def size_of(path: str) -> int:
    """Bytes of a file, zipped or not; 0 for what is no file."""
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0


@once_a_file
def count_characters(path: str) -> int:
    """Characters of a text file."""
    return sum(map(len, decoded_blocks(path)))


@once_a_file
def digest(path: str) -> str:
    """sha256 of the content, unzipped, so that compressing a file again does not change it."""
    hasher = hashlib.sha256()
    with opened(path) as file:
        while raw := file.read(BLOCK):
            hasher.update(raw)
    return hasher.hexdigest()
