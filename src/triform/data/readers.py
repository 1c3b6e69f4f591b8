"""Files to rows, pairs and pieces of text, one at a time.

A path is a .txt, .csv, .tsv or .jsonl (.ndjson, .json) file, each also .gz, or `builtin:NAME[/SPLIT]`.
Everything streams; what is wrong is a DataError with the file and the line. How columns are found is told
in `triform.data.columns`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

from triform.config import DataConfig
from triform.data import columns, sets, tables
from triform.data.files import (
    BLOCK,
    BUILTIN,
    count_characters,
    count_lines,
    decoded_blocks,
    digest,
    kind_of,
    numbered_lines,
)
from triform.errors import DataError


@dataclass(frozen=True, slots=True)
class Row:
    """A text and its label, with the line it began on."""

    text: str
    label: str
    line: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str
    line: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text; `ends` when a document ends after it."""

    text: str
    ends: bool
    line: int


Unit = TypeVar("Unit", Row, Pair, Piece)


def on_lines(units: Iterator[Unit], lines: Container[int] | None) -> Iterator[Unit]:
    """Those that begin on one of the lines; without lines, all."""
    return units if lines is None else (unit for unit in units if unit.line in lines)


def read_rows(path: str, layout: DataConfig, *, labelled: bool = True) -> Iterator[Row]:
    """Texts with labels. Without `labelled`, a text file gives its lines, and a missing label is ""."""
    kind = kind_of(path)
    if kind == "builtin":
        found = _builtin_rows(path, labelled=labelled)
    elif kind == "txt":
        if labelled:
            raise DataError("a .txt has no labels; use a .csv, .tsv or .jsonl with a label column", path=path)
        found = ((line, text, "") for line, text in read_lines(path))
    elif kind == "jsonl":
        found = _json_rows(path, layout, labelled=labelled)
    else:
        found = tables.delimited(
            path, kind, lambda sample: columns.row_columns(path, sample, layout, labelled=labelled)
        )
    for line, text, label in found:
        label = label.strip()
        if labelled and not label:
            raise DataError("has an empty label; fill it in or remove the row", path=path, line=line)
        yield Row(text, label, line)


def describe_rows(path: str, layout: DataConfig) -> str:
    """How a labelled table is read, for the user to check; empty where nothing is guessed."""
    kind = kind_of(path)
    if kind not in ("csv", "tsv"):
        return ""
    found = tables.columns_of(path, kind, lambda sample: columns.row_columns(path, sample, layout, labelled=True))
    second = "" if found.second is None else f", label in column {found.second + 1}"
    return f"{'a header' if found.header else 'no header'}, text in column {found.first + 1}{second}"


def _builtin_rows(path: str, *, labelled: bool) -> Iterator[tables.Cells]:
    if labelled:
        sets.require(path, "classify")
    if sets.is_for(path, "classify"):
        for line, (text, label) in enumerate(sets.pairs(path), 1):
            yield line, text, label
    else:
        for line, text in read_lines(path):
            yield line, text, ""


def _json_rows(path: str, layout: DataConfig, *, labelled: bool) -> Iterator[tables.Cells]:
    keys: tuple[str, str] | None = None
    for line, record in tables.objects(path):
        keys = keys or columns.row_keys(path, list(record), layout, labelled=labelled)
        text = tables.text_value(path, line, record, keys[0])
        if labelled or record.get(keys[1]) is not None:
            yield line, text, tables.label_value(path, line, record, keys[1])
        else:
            yield line, text, ""


def read_pairs(path: str, layout: DataConfig) -> Iterator[Pair]:
    """Sentences with translations, from a table of two columns."""
    kind = kind_of(path)
    found: Iterator[tables.Cells]
    if kind == "builtin":
        sets.require(path, "translate")
        found = ((line, *pair) for line, pair in enumerate(sets.pairs(path), 1))
    elif kind == "txt":
        raise DataError(
            "a .txt has no pairs; use a .csv, .tsv or .jsonl of two columns, "
            "or data.source and data.target for aligned files",
            path=path,
        )
    elif kind == "jsonl":
        found = _json_pairs(path, layout)
    else:
        found = tables.delimited(path, kind, lambda sample: columns.pair_columns(path, sample, layout))
    for line, source, target in found:
        yield Pair(source, target, line)


def _json_pairs(path: str, layout: DataConfig) -> Iterator[tables.Cells]:
    keys: tuple[str, str] | None = None
    for line, record in tables.objects(path):
        keys = keys or columns.pair_keys(path, list(record), layout)
        source, target = (tables.text_value(path, line, record, key) for key in keys)
        yield line, source, target


def read_aligned(source: str, target: str) -> Iterator[Pair]:
    """Line by line from two files, of any name; unequal counts are found at the shorter one's end."""
    sides = (numbered_lines(_a_file(path)) for path in (source, target))
    some = False
    for left, right in zip_longest(*sides):
        if left is None or right is None:
            check_aligned(source, target)
            raise DataError("changed while it was being read", path=source)
        yield Pair(left[1], right[1], left[0])
        some = True
    if not some:
        raise DataError("is empty", path=source)


def read_either(name: str, layout: DataConfig) -> Iterator[Pair]:
    """Pairs from one table, or from two aligned files named `source,target`."""
    source, comma, target = name.partition(",")
    if not comma or Path(name).exists():
        return read_pairs(name, layout)
    check_aligned(source, target)
    return read_aligned(source, target)


def check_aligned(source: str, target: str) -> int:
    """The number of pairs of two aligned files; a DataError when they do not match."""
    left, right = count_lines(_a_file(source)), count_lines(_a_file(target))
    if left != right:
        raise DataError(f"{source} has {left} lines but {target} has {right}; they must match line by line")
    if not left:
        raise DataError("is empty", path=source)
    return left


def _a_file(path: str) -> str:
    if path.startswith(BUILTIN):
        raise DataError("holds both sides; give it as data.train instead of source and target", path=path)
    return path


def read_pieces(path: str, layout: DataConfig, *, start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    """Text to learn to write. `start` and `stop` count characters of a .txt, documents of a table.

    The pieces of a .txt put together are its text, exactly. Where the text has such a place, they are cut
    after a line end that no space follows, so that tokenizing them one by one equals tokenizing the whole.
    """
    blocks = _blocks(path)
    if blocks is None:
        for row in islice(read_rows(path, layout, labelled=False), start, stop):
            yield Piece(row.text, True, row.line)
        return
    line, pending = 1, ""
    for text, skipped in _between(blocks, path, start, stop):
        line += skipped
        pending += text
        while len(pending) >= BLOCK:
            cut = cut_place(pending[:BLOCK])
            yield Piece(pending[:cut], False, line)
            line += pending.count("\n", 0, cut)
            pending = pending[cut:]
    if pending:
        yield Piece(pending, False, line)


def _blocks(path: str) -> Iterable[str] | None:
    """The running text of a .txt or a builtin set; None where there are documents instead."""
    if not is_running_text(path):
        return None
    return [sets.text(path)] if path.startswith(BUILTIN) else decoded_blocks(path)


def _between(blocks: Iterable[str], path: str, start: int, stop: int | None) -> Iterator[tuple[str, int]]:
    """The part of the text in [start:stop), with the line ends skipped before each block."""
    at = skipped = 0
    for block in blocks:
        low = max(start - at, 0)
        high = len(block) if stop is None else max(stop - at, 0)
        skipped += block.count("\n", 0, low)
        if kept := block[low:high]:
            yield kept, skipped
            skipped = 0
        at += len(block)
        if stop is not None and at >= stop:
            break
    if not at:
        raise DataError("is empty", path=path)


def cut_place(text: str) -> int:
    """Where to cut a long text so that few tokenizers notice; more than 0.

    Best is a line end between two visible characters, then one before a visible character, then any line
    end, then a single space, then the end.
    """
    second = 0
    at = text.rfind("\n", 0, len(text) - 1)
    while at >= 0:
        if not text[at + 1].isspace():
            if at and not text[at - 1].isspace():
                return at + 1
            second = second or at + 1
        at = text.rfind("\n", 0, at)
    return second or text.rfind("\n") + 1 or _space_place(text) or len(text)


def _space_place(text: str) -> int:
    at = text.rfind(" ", 1, len(text) - 1)
    while at > 0 and (text[at - 1].isspace() or text[at + 1].isspace()):
        at = text.rfind(" ", 1, at)
    return max(at, 0)


def is_running_text(path: str) -> bool:
    """Whether a path holds one text, counted in characters, rather than documents."""
    kind = kind_of(path)
    return kind == "txt" or (kind == "builtin" and sets.is_text(path))


def count_units(path: str, layout: DataConfig) -> int:
    """Characters of a text file, documents of a table: what `read_pieces` counts in."""
    if not is_running_text(path):
        return sum(1 for _ in read_rows(path, layout, labelled=False))
    count = len(sets.text(path)) if path.startswith(BUILTIN) else count_characters(path)
    if not count:
        raise DataError("is empty", path=path)
    return count


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file of any name; of a builtin set, its texts."""
    if not path.startswith(BUILTIN):
        lines = numbered_lines(path)
    elif sets.is_text(path):
        lines = enumerate(sets.text(path).removesuffix("\n").split("\n"), 1)
    else:
        lines = ((line, first) for line, (first, _) in enumerate(sets.pairs(path), 1))
    some = False
    for line in lines:
        yield line
        some = True
    if not some:
        raise DataError("is empty", path=path)


def fingerprint(path: str) -> str:
    """A short sha256 of the content, to tell that data changed."""
    if not path.startswith(BUILTIN):
        return digest(path)[:16]
    content = sets.text(path) if sets.is_text(path) else repr(list(sets.pairs(path)))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
