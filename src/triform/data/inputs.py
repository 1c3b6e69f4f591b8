"""Texts to predict: the lines of a text file, or one column of a table whose other columns are kept.

A table is read as it is for training, but needs neither labels nor targets. The column is the one that was asked
for, else the one of the same name as in the training table, else the one that `triform.data.columns` finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from triform.config import DataConfig, TaskName
from triform.data import columns, readers, tables
from triform.data.files import Kind, kind_by_name
from triform.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Texts in order, each with the row that it came from."""

    texts: list[str]
    names: list[str]  # of the columns, in order, no two alike
    rows: list[dict[str, object]]
    column: str  # the name of the column that holds the texts
    description: str = ""  # how a table was read, for the user to check


def read_inputs(path: str, task: TaskName, layout: DataConfig) -> Inputs:
    """The texts of a file.

    Args:
        path: A .csv, .tsv or .jsonl file, each also .gz, is a table; any other file has one text per line.
        task: For translate the source column is read, otherwise the text column.
        layout: Settings of the run, with what was asked for in this call laid over them.

    Raises:
        DataError: If the file cannot be read, is empty, or has no such column.
    """
    kind = kind_by_name(path)
    if kind not in ("csv", "tsv", "jsonl"):
        return from_texts((text for _, text in readers.read_lines(path)), task)
    read = _read_objects(path, task, layout) if kind == "jsonl" else _read_delimited(path, kind, task, layout)
    return replace(read, description=f"{path}: {read.description}")


def from_texts(texts: Iterable[str], task: TaskName) -> Inputs:
    """Texts without a table, as a table of one column."""
    found, name = list(texts), default_name(task)
    return Inputs(texts=found, names=[name], rows=[{name: text} for text in found], column=name)


def default_name(task: TaskName) -> str:
    return "source" if task == "translate" else "text"


def _read_delimited(path: str, kind: Kind, task: TaskName, layout: DataConfig) -> Inputs:
    def choose(sample: columns.Rows) -> columns.Columns:
        _check_separator(path, kind, sample[0])
        known = _with_trained_name(sample[0], task, layout)
        find = columns.source_input_column if task == "translate" else columns.text_input_column
        return find(path, sample, known)

    found, first, rows = tables.whole_rows(path, kind, choose)
    headless = [f"column_{number}" for number in range(1, len(first) + 1)]
    headless[found.first] = default_name(task)
    names = unique_names(first if found.header else headless)
    read = [[*fields, *[""] * (len(names) - len(fields))][: len(names)] for _, fields in rows]
    header, place = ("a header", repr(first[found.first])) if found.header else ("no header", found.first + 1)
    return Inputs(
        texts=[fields[found.first] for fields in read],
        names=names,
        rows=[dict(zip(names, fields, strict=True)) for fields in read],
        column=names[found.first],
        description=f"{header}, texts in column {place}",
    )


def _check_separator(path: str, kind: Kind, first: Sequence[str]) -> None:
    """Refuse a table of one column whose header names several ones, separated in another way."""
    known = (*columns.TEXT_NAMES, *columns.SOURCE_NAMES)
    for separator in (";", "\t", "|", ","):
        names = first[0].split(separator)
        if len(first) == 1 and len(names) > 1 and columns.known_name(names, known) is not None:
            wanted = "commas" if kind == "csv" else "tabs"
            raise DataError(
                f"seems to be separated by {separator!r}; separate its columns by {wanted}, as a .{kind} is",
                path=path,
            )


def _read_objects(path: str, task: TaskName, layout: DataConfig) -> Inputs:
    key: str | None = None
    texts: list[str] = []
    rows: list[dict[str, object]] = []
    for line, record in tables.objects(path):
        if key is None:
            known = _with_trained_name(list(record), task, layout)
            if task == "translate":
                key = columns.source_input_key(path, list(record), known)
            else:
                key = columns.row_keys(path, list(record), known, labelled=False)[0]
        texts.append(tables.text_value(path, line, record, key))
        rows.append(record)
    assert key is not None  # a file without an object is refused
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Inputs(texts=texts, names=names, rows=rows, column=key, description=f"texts under the key {key!r}")


def _with_trained_name(names: Sequence[str], task: TaskName, layout: DataConfig) -> DataConfig:
    """The layout, asking for the column of the training table by name where this table has that name."""
    setting = "source_column" if task == "translate" else "text_column"
    if getattr(layout, setting) or layout.header == "no" or not layout.train:
        return layout
    name = _trained_name(task, layout)
    if not name or name.strip().casefold() not in (each.strip().casefold() for each in names):
        return layout
    return replace(layout, source_column=name) if task == "translate" else replace(layout, text_column=name)


def _trained_name(task: TaskName, layout: DataConfig) -> str:
    """The name of the column that the run was trained on; "" where the table is gone or had no header."""
    kind = kind_by_name(layout.train)
    if kind not in ("csv", "tsv"):
        return ""

    def choose(sample: columns.Rows) -> columns.Columns:
        if task == "translate":
            return columns.pair_columns(layout.train, sample, layout)
        return columns.row_columns(layout.train, sample, layout, labelled=task == "classify")

    try:
        found, first, _ = tables.whole_rows(layout.train, kind, choose)
    except DataError:
        return ""
    return first[found.first] if found.header else ""


def unique_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, numbered where they would occur twice: a, a_2, a_3."""
    found: list[str] = []
    used = set(taken)
    last: dict[str, int] = {}
    for name in names:
        number, unique = last.get(name, 1), name
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        last[name] = number
        used.add(unique)
        found.append(unique)
    return found
