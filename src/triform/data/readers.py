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
from triform.data import builtin_sets, columns, tables
from triform.data.files import (
    BLOCK_SIZE,
    BUILTIN_PREFIX,
    content_sha256,
    count_characters,
    count_lines,
    detect_kind,
    iter_numbered_lines,
    iter_text_blocks,
)
from triform.errors import DataError


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its label, with the line it began on."""

    text: str
    label: str
    line: int


@dataclass(frozen=True, slots=True)
class TextPair:
    """A sentence and its translation."""

    source: str
    target: str
    line: int


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A stretch of text; `ends` when a document ends after it."""

    text: str
    ends_document: bool
    line: int


ExampleT = TypeVar("ExampleT", LabelledText, TextPair, TextChunk)


def filter_lines(examples: Iterator[ExampleT], lines: Container[int] | None) -> Iterator[ExampleT]:
    """Those that begin on one of the lines; without lines, all."""
    return examples if lines is None else (example for example in examples if example.line in lines)


def read_rows(path: str, data_config: DataConfig, *, labelled: bool = True) -> Iterator[LabelledText]:
    """Texts with labels. Without `labelled`, a text file gives its lines, and a missing label is ""."""
    kind = detect_kind(path)
    if kind == "builtin":
        cells = _read_builtin_rows(path, labelled=labelled)
    elif kind == "txt":
        if labelled:
            raise DataError("a .txt has no labels; use a .csv, .tsv or .jsonl with a label column", path=path)
        cells = ((line, text, "") for line, text in read_lines(path))
    elif kind == "jsonl":
        cells = _read_json_rows(path, data_config, labelled=labelled)
    else:
        cells = tables.read_cells(
            path, kind, lambda sample: columns.find_row_columns(path, sample, data_config, labelled=labelled)
        )
    for line, text, label in cells:
        label = label.strip()
        if labelled and not label:
            raise DataError("has an empty label; fill it in or remove the row", path=path, line=line)
        yield LabelledText(text, label, line)


def describe_columns(path: str, data_config: DataConfig) -> str:
    """How a labelled table is read, for the user to check; empty where nothing is guessed."""
    kind = detect_kind(path)
    if kind not in ("csv", "tsv"):
        return ""
    selected_columns = tables.detect_columns(
        path, kind, lambda sample: columns.find_row_columns(path, sample, data_config, labelled=True)
    )
    label_description = (
        "" if selected_columns.second is None else f", label in column {selected_columns.second + 1}"
    )
    header_description = "a header" if selected_columns.has_header else "no header"
    return f"{header_description}, text in column {selected_columns.first + 1}{label_description}"


def _read_builtin_rows(path: str, *, labelled: bool) -> Iterator[tables.NumberedCells]:
    if labelled:
        builtin_sets.require_task(path, "classify")
    if builtin_sets.matches_task(path, "classify"):
        for line, (text, label) in enumerate(builtin_sets.load_pairs(path), 1):
            yield line, text, label
    else:
        for line, text in read_lines(path):
            yield line, text, ""


def _read_json_rows(path: str, data_config: DataConfig, *, labelled: bool) -> Iterator[tables.NumberedCells]:
    keys: tuple[str, str] | None = None
    for line, record in tables.read_json_lines(path):
        keys = keys or columns.find_row_keys(path, list(record), data_config, labelled=labelled)
        text = tables.get_text(path, line, record, keys[0])
        if labelled or record.get(keys[1]) is not None:
            yield line, text, tables.get_label(path, line, record, keys[1])
        else:
            yield line, text, ""


def read_pairs(path: str, data_config: DataConfig) -> Iterator[TextPair]:
    """Sentences with translations, from a table of two columns."""
    kind = detect_kind(path)
    cells: Iterator[tables.NumberedCells]
    if kind == "builtin":
        builtin_sets.require_task(path, "translate")
        cells = ((line, *pair) for line, pair in enumerate(builtin_sets.load_pairs(path), 1))
    elif kind == "txt":
        raise DataError(
            "a .txt has no pairs; use a .csv, .tsv or .jsonl of two columns, "
            "or data.source and data.target for aligned files",
            path=path,
        )
    elif kind == "jsonl":
        cells = _read_json_pairs(path, data_config)
    else:
        cells = tables.read_cells(path, kind, lambda sample: columns.find_pair_columns(path, sample, data_config))
    for line, source, target in cells:
        yield TextPair(source, target, line)


def _read_json_pairs(path: str, data_config: DataConfig) -> Iterator[tables.NumberedCells]:
    keys: tuple[str, str] | None = None
    for line, record in tables.read_json_lines(path):
        keys = keys or columns.find_pair_keys(path, list(record), data_config)
        source, target = (tables.get_text(path, line, record, key) for key in keys)
        yield line, source, target


def read_aligned(source: str, target: str) -> Iterator[TextPair]:
    """Line by line from two files, of any name; unequal counts are found at the shorter one's end."""
    sides = (iter_numbered_lines(_require_file(path)) for path in (source, target))
    has_pairs = False
    for left, right in zip_longest(*sides):
        if left is None or right is None:
            validate_aligned(source, target)
            raise DataError("changed while it was being read", path=source)
        yield TextPair(left[1], right[1], left[0])
        has_pairs = True
    if not has_pairs:
        raise DataError("is empty", path=source)


def read_pairs_or_aligned(name: str, data_config: DataConfig) -> Iterator[TextPair]:
    """Pairs from one table, or from two aligned files named `source,target`."""
    source, comma, target = name.partition(",")
    if not comma or Path(name).exists():
        return read_pairs(name, data_config)
    validate_aligned(source, target)
    return read_aligned(source, target)


def validate_aligned(source: str, target: str) -> int:
    """The number of pairs of two aligned files; a DataError when they do not match."""
    left, right = count_lines(_require_file(source)), count_lines(_require_file(target))
    if left != right:
        raise DataError(f"{source} has {left} lines but {target} has {right}; they must match line by line")
    if not left:
        raise DataError("is empty", path=source)
    return left


def _require_file(path: str) -> str:
    if path.startswith(BUILTIN_PREFIX):
        raise DataError("holds both sides; give it as data.train instead of source and target", path=path)
    return path


def read_chunks(
    path: str, data_config: DataConfig, *, start: int = 0, stop: int | None = None
) -> Iterator[TextChunk]:
    """Text to learn to write. `start` and `stop` count characters of a .txt, documents of a table.

    The pieces of a .txt put together are its text, exactly. Where the text has such a place, they are cut
    after a line end that no space follows, so that tokenizing them one by one equals tokenizing the whole.
    """
    blocks = _open_blocks(path)
    if blocks is None:
        for row in islice(read_rows(path, data_config, labelled=False), start, stop):
            yield TextChunk(row.text, True, row.line)
        return
    line, pending = 1, ""
    for text, skipped in _slice_blocks(blocks, path, start, stop):
        line += skipped
        pending += text
        while len(pending) >= BLOCK_SIZE:
            cut_index = find_safe_cut(pending[:BLOCK_SIZE])
            yield TextChunk(pending[:cut_index], False, line)
            line += pending.count("\n", 0, cut_index)
            pending = pending[cut_index:]
    if pending:
        yield TextChunk(pending, False, line)


def _open_blocks(path: str) -> Iterable[str] | None:
    """The running text of a .txt or a builtin set; None where there are documents instead."""
    if not is_running_text(path):
        return None
    return [builtin_sets.load_text(path)] if path.startswith(BUILTIN_PREFIX) else iter_text_blocks(path)


def _slice_blocks(blocks: Iterable[str], path: str, start: int, stop: int | None) -> Iterator[tuple[str, int]]:
    """The part of the text in [start:stop), with the line ends skipped before each block."""
    offset = skipped = 0
    for block in blocks:
        low = max(start - offset, 0)
        high = len(block) if stop is None else max(stop - offset, 0)
        skipped += block.count("\n", 0, low)
        if selected := block[low:high]:
            yield selected, skipped
            skipped = 0
        offset += len(block)
        if stop is not None and offset >= stop:
            break
    if not offset:
        raise DataError("is empty", path=path)


def find_safe_cut(text: str) -> int:
    """Where to cut a long text so that few tokenizers notice; more than 0.

    Best is a line end between two visible characters, then one before a visible character, then any line
    end, then a single space, then the end.
    """
    fallback = 0
    position = text.rfind("\n", 0, len(text) - 1)
    while position >= 0:
        if not text[position + 1].isspace():
            if position and not text[position - 1].isspace():
                return position + 1
            fallback = fallback or position + 1
        position = text.rfind("\n", 0, position)
    return fallback or text.rfind("\n") + 1 or _find_single_space(text) or len(text)


def _find_single_space(text: str) -> int:
    position = text.rfind(" ", 1, len(text) - 1)
    while position > 0 and (text[position - 1].isspace() or text[position + 1].isspace()):
        position = text.rfind(" ", 1, position)
    return max(position, 0)


def is_running_text(path: str) -> bool:
    """Whether a path holds one text, counted in characters, rather than documents."""
    kind = detect_kind(path)
    return kind == "txt" or (kind == "builtin" and builtin_sets.is_running_text(path))


def count_units(path: str, data_config: DataConfig) -> int:
    """Count the characters of a text file or the documents of a table, the units of `read_chunks`."""
    if not is_running_text(path):
        return sum(1 for _ in read_rows(path, data_config, labelled=False))
    count = len(builtin_sets.load_text(path)) if path.startswith(BUILTIN_PREFIX) else count_characters(path)
    if not count:
        raise DataError("is empty", path=path)
    return count


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file of any name; of a builtin set, its texts."""
    if not path.startswith(BUILTIN_PREFIX):
        lines = iter_numbered_lines(path)
    elif builtin_sets.is_running_text(path):
        lines = enumerate(builtin_sets.load_text(path).removesuffix("\n").split("\n"), 1)
    else:
        lines = ((line, first) for line, (first, _) in enumerate(builtin_sets.load_pairs(path), 1))
    has_lines = False
    for line in lines:
        yield line
        has_lines = True
    if not has_lines:
        raise DataError("is empty", path=path)


def fingerprint(path: str) -> str:
    """A short sha256 of the content, to tell that data changed."""
    if not path.startswith(BUILTIN_PREFIX):
        return content_sha256(path)[:16]
    content = (
        builtin_sets.load_text(path)
        if builtin_sets.is_running_text(path)
        else repr(list(builtin_sets.load_pairs(path)))
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]
