"""Read labelled texts, pairs of texts and chunks of plain text from files and built-in datasets.

A path is a .txt, .csv, .tsv, .jsonl (.ndjson, .json), .parquet or .arrow (.feather) file, each also with .gz or
.zst added, the address of such a file, a folder of data (`triform.data.folders`), or `builtin:NAME[/SPLIT]`. Files
are streamed, and a DataError names the file and the line of a problem. `triform.data.columns` finds the columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

from triform.config import DataConfig
from triform.data import builtin_sets, columns, tables
from triform.data.files import (
    BLOCK_SIZE,
    BUILTIN_PREFIX,
    RECORD_KINDS,
    content_sha256,
    count_characters,
    count_lines,
    detect_kind,
    iter_numbered_lines,
    iter_text_blocks,
    row_error,
)
from triform.data.folders import list_labelled_files, list_text_files
from triform.data.shards import fingerprint_shards, has_manifest
from triform.errors import DataError


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its label, with the line on which it starts."""

    text: str
    label: str
    line: int


@dataclass(frozen=True, slots=True)
class TextPair:
    """A source text and its translation, with the line on which the pair starts."""

    source: str
    target: str
    line: int


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A part of a text. `ends_document` is true if a document ends after it."""

    text: str
    ends_document: bool
    line: int


ExampleT = TypeVar("ExampleT", LabelledText, TextPair, TextChunk)


def filter_lines(examples: Iterator[ExampleT], lines: Container[int] | None) -> Iterator[ExampleT]:
    """Yield the examples that start on one of the lines, or all of them if `lines` is None."""
    return examples if lines is None else (example for example in examples if example.line in lines)


def read_rows(path: str, data_config: DataConfig, *, labelled: bool = True) -> Iterator[LabelledText]:
    """Yield texts with their labels.

    Args:
        path: A table, or a built-in set.
        data_config: Data settings.
        labelled: Whether labels are required. If not, a plain text file is read line by line, and a missing label
            is an empty string.

    Raises:
        DataError: The file cannot be used.
    """
    kind = detect_kind(path)
    if kind == "builtin":
        cells = _read_builtin_rows(path, labelled=labelled)
    elif kind == "txt":
        if labelled:
            raise DataError(
                "a .txt file has no labels; use a .csv, .tsv, .jsonl or .parquet file with a label column",
                path=path,
            )
        cells = ((line, text, "") for line, text in read_lines(path))
    elif kind == "texts":
        cells = _read_text_files(path, labelled=labelled)
    elif kind in RECORD_KINDS:
        cells = _read_record_rows(path, data_config, labelled=labelled)
    else:
        cells = tables.read_cells(
            path,
            kind,
            lambda sample: columns.find_row_columns(path, sample, data_config, labelled=labelled),
            data_config.delimiter,
        )
    for line, text, label in cells:
        label = label.strip()
        if labelled and not label:
            raise row_error("the label is empty; fill it in or remove the row", path, line)
        yield LabelledText(text, label, line)


def describe_columns(path: str, data_config: DataConfig) -> str:
    """Describe how a labelled table is read, for the user to check; empty if nothing was guessed."""
    kind = detect_kind(path)
    if kind not in ("csv", "tsv"):
        return ""
    selected_columns = tables.detect_columns(
        path,
        kind,
        lambda sample: columns.find_row_columns(path, sample, data_config, labelled=True),
        data_config.delimiter,
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


def _read_text_files(path: str, *, labelled: bool) -> Iterator[tables.NumberedCells]:
    """Yield the text and the label of each file of a folder, counted from 1."""
    files = list_labelled_files(path) if labelled else [(file, "") for file in list_text_files(path)]
    for number, (file, label) in enumerate(files, 1):
        yield number, "".join(iter_text_blocks(str(file))), label


def _read_record_rows(path: str, data_config: DataConfig, *, labelled: bool) -> Iterator[tables.NumberedCells]:
    def find_keys(names: list[str]) -> tuple[str, str]:
        return columns.find_row_keys(path, names, data_config, labelled=labelled)

    keys: tuple[str, str] | None = None
    for line, record in tables.read_records(path, find_keys):
        keys = keys or find_keys(list(record))
        text = tables.get_text(path, line, record, keys[0])
        if labelled or record.get(keys[1]) is not None:
            yield line, text, tables.get_label(path, line, record, keys[1])
        else:
            yield line, text, ""


def read_pairs(path: str, data_config: DataConfig) -> Iterator[TextPair]:
    """Yield sources with their targets from a table or a built-in set."""
    kind = detect_kind(path, remedy="; write two aligned files as SOURCE,TARGET")
    cells: Iterator[tables.NumberedCells]
    if kind == "builtin":
        builtin_sets.require_task(path, "translate")
        cells = ((line, *pair) for line, pair in enumerate(builtin_sets.load_pairs(path), 1))
    elif kind in ("txt", "texts"):
        raise DataError(
            f"{'a .txt file' if kind == 'txt' else 'a folder of text files'} has no pairs; use a .csv, .tsv, "
            ".jsonl or .parquet file with two columns, or data.source and data.target for two aligned files",
            path=path,
        )
    elif kind in RECORD_KINDS:
        cells = _read_record_pairs(path, data_config)
    else:
        cells = tables.read_cells(
            path,
            kind,
            lambda sample: columns.find_pair_columns(path, sample, data_config),
            data_config.delimiter,
        )
    for line, source, target in cells:
        yield TextPair(source, target, line)


def _read_record_pairs(path: str, data_config: DataConfig) -> Iterator[tables.NumberedCells]:
    def find_keys(names: list[str]) -> tuple[str, str]:
        return columns.find_pair_keys(path, names, data_config)

    def select_columns(names: list[str]) -> Sequence[str]:
        return names if columns.NESTED_PAIR in names else find_keys(names)

    keys: tuple[str, str] | None = None
    for line, row in tables.read_records(path, select_columns):
        record = tables.unnest_pair(row)
        keys = keys or find_keys(list(record))
        source, target = (tables.get_text(path, line, record, key) for key in keys)
        yield line, source, target


def read_aligned(source: str, target: str) -> Iterator[TextPair]:
    """Yield pairs from the lines of two files. The files may have any suffix."""
    sides = (iter_numbered_lines(_require_file(path)) for path in (source, target))
    has_pairs = False
    for left, right in zip_longest(*sides):
        if left is None or right is None:
            validate_aligned(source, target)
            raise DataError("the file changed while it was being read", path=source)
        yield TextPair(left[1], right[1], left[0])
        has_pairs = True
    if not has_pairs:
        raise DataError("the file is empty", path=source)


def read_pairs_or_aligned(name: str, data_config: DataConfig) -> Iterator[TextPair]:
    """Yield pairs from one table, or from two aligned files given as `source,target`."""
    source, comma, target = name.partition(",")
    if not comma or Path(name).exists():
        return read_pairs(name, data_config)
    validate_aligned(source, target)
    return read_aligned(source, target)


def validate_aligned(source: str, target: str) -> int:
    """Return the number of pairs of two aligned files.

    Raises:
        DataError: The files have different numbers of lines, or are empty.
    """
    left, right = count_lines(_require_file(source)), count_lines(_require_file(target))
    if left != right:
        raise DataError(f"{source} has {left} lines but {target} has {right}; the files must match line by line")
    if not left:
        raise DataError("the file is empty", path=source)
    return left


def _require_file(path: str) -> str:
    if path.startswith(BUILTIN_PREFIX):
        raise DataError(
            "this set contains both sides; use it as data.train instead of data.source and data.target", path=path
        )
    return path


def read_chunks(
    path: str, data_config: DataConfig, *, start: int = 0, stop: int | None = None
) -> Iterator[TextChunk]:
    """Yield the text for a language model in chunks.

    The chunks of a plain text concatenate to exactly that text. If possible they are split after a line end that
    no space follows, so that tokenizing the chunks is equal to tokenizing the whole text.

    Args:
        path: A text file, a table of documents, or a built-in set.
        data_config: Data settings.
        start: The first unit to read: a character of a plain text, or a document of a table.
        stop: The unit after the last one; None reads to the end.
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
    """Return the blocks of a plain text, or None if the path contains documents."""
    if not is_running_text(path):
        return None
    return [builtin_sets.load_text(path)] if path.startswith(BUILTIN_PREFIX) else iter_text_blocks(path)


def _slice_blocks(blocks: Iterable[str], path: str, start: int, stop: int | None) -> Iterator[tuple[str, int]]:
    """Yield the text in [start:stop) in blocks, each with the number of line ends skipped before it."""
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
        raise DataError("the file is empty", path=path)


def find_safe_cut(text: str) -> int:
    """Return the index at which to split a long text so that the tokens change as little as possible.

    In order of preference: a line end between two visible characters, one before a visible character, any line
    end, a single space, the end of the text.
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
    """Return whether a path contains one plain text rather than documents."""
    kind = detect_kind(path)
    return kind == "txt" or (kind == "builtin" and builtin_sets.is_running_text(path))


def count_units(path: str, data_config: DataConfig) -> int:
    """Count the units of `read_chunks`: the characters of a plain text or the documents of a table."""
    if not is_running_text(path):
        return sum(1 for _ in read_rows(path, data_config, labelled=False))
    count = len(builtin_sets.load_text(path)) if path.startswith(BUILTIN_PREFIX) else count_characters(path)
    if not count:
        raise DataError("the file is empty", path=path)
    return count


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file with any suffix, or the texts of a built-in set."""
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
        raise DataError("the file is empty", path=path)


def fingerprint(path: str) -> str:
    """Return a short hash of the content, which shows whether data has changed."""
    if has_manifest(path):
        return fingerprint_shards(path)
    if not path.startswith(BUILTIN_PREFIX):
        return content_sha256(path)[:16]
    content = (
        builtin_sets.load_text(path)
        if builtin_sets.is_running_text(path)
        else repr(list(builtin_sets.load_pairs(path)))
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]
