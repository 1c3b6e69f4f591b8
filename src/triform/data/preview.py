"""Show how a data file is read: the task it fits, its columns with their roles, and its first rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from triform.config import TASK_NAMES, DataConfig, TaskName
from triform.data import builtin_sets, columns, readers, tables
from triform.data.files import BUILTIN_PREFIX, RECORD_KINDS, FileKind, detect_kind
from triform.data.folders import list_text_files

MAX_PREVIEW_ROWS = 5
ROLES: dict[TaskName, tuple[str, str]] = {
    "classify": ("text", "label"),
    "generate": ("text", ""),
    "translate": ("source", "target"),
}


@dataclass(frozen=True, kw_only=True)
class DataPreview:
    """How a file is read.

    Attributes:
        columns: The names of the columns.
        selectors: What selects each column in a setting such as `data.text_column`: its number, or its key in JSON.
        roles: What each column is used for: text, label, source, target or "".
        rows: The first rows.
    """

    columns: tuple[str, ...]
    selectors: tuple[str, ...] = ()
    roles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def guess_task(name: str) -> TaskName:
    """Return the task that a file, two aligned files or a built-in set fits best.

    A text file is for generate, a table whose header names a source and a target or two languages for translate,
    and any other table for classify.

    Raises:
        DataError: The file cannot be read.
    """
    if name.startswith(BUILTIN_PREFIX):
        return next(task for task in TASK_NAMES if builtin_sets.matches_task(name, task))
    if "," in name and not Path(name).exists():
        return "translate"
    kind = detect_kind(name)
    if kind == "texts":
        return "classify" if any(file.parent != Path(name) for file in list_text_files(name)) else "generate"
    if kind == "txt":
        return "generate"
    return "translate" if columns.is_pair_header(_read_head(name, kind)) else "classify"


def _read_head(path: str, kind: FileKind) -> Sequence[Sequence[str]]:
    """Return the first rows of a table; of JSON, Parquet and Arrow, the names of its columns."""
    if kind in RECORD_KINDS:
        return [list(tables.unnest_pair(next(tables.read_records(path))[1]))]
    head: list[Sequence[str]] = []

    def keep_rows(rows: columns.TableRows) -> columns.Columns:
        head.extend(rows)
        return columns.Columns(False, 0, None)

    tables.read_table(path, kind, keep_rows)
    return head


def preview_data(task: TaskName, name: str, data_config: DataConfig) -> DataPreview:
    """Return how a file, two aligned files or a built-in set is read for a task.

    Raises:
        DataError: The file cannot be used for the task.
    """
    is_aligned = task == "translate" and "," in name and not Path(name).exists()
    kind = "builtin" if is_aligned else detect_kind(name)
    if kind in RECORD_KINDS:
        return _preview_records(task, name, data_config)
    if kind in ("csv", "tsv"):
        return _preview_table(task, name, kind, data_config)
    roles = ROLES[task] if task != "generate" else ("text",)
    rows = islice(_read_examples(task, name, data_config), MAX_PREVIEW_ROWS)
    return DataPreview(columns=roles, roles=roles, rows=tuple(row[: len(roles)] for row in rows))


def _read_examples(task: TaskName, name: str, data_config: DataConfig) -> Iterator[tuple[str, ...]]:
    if task == "translate":
        return ((pair.source, pair.target) for pair in readers.read_pairs_or_aligned(name, data_config))
    if task == "classify":
        return ((row.text, row.label) for row in readers.read_rows(name, data_config))
    if not readers.is_running_text(name):
        return ((row.text,) for row in readers.read_rows(name, data_config, labelled=False))
    return ((text,) for _, text in readers.read_lines(name) if text.strip())


def _preview_table(task: TaskName, path: str, kind: FileKind, data_config: DataConfig) -> DataPreview:
    def choose(rows: columns.TableRows) -> columns.Columns:
        if task == "translate":
            return columns.find_pair_columns(path, rows, data_config)
        return columns.find_row_columns(path, rows, data_config, labelled=task == "classify")

    selected, first_row, rows = tables.read_table(path, kind, choose, data_config.delimiter)
    header = first_row if selected.has_header else [""] * len(first_row)
    names = [cell or f"column {number}" for number, cell in enumerate(header, start=1)]
    role_of = {selected.second: ROLES[task][1], selected.first: ROLES[task][0]}
    return DataPreview(
        columns=tuple(names),
        selectors=tuple(str(number) for number in range(1, len(names) + 1)),
        roles=tuple(role_of.get(index, "") for index in range(len(names))),
        rows=tuple(tuple(fields[: len(names)]) for _, fields in islice(rows, MAX_PREVIEW_ROWS)),
    )


def _preview_records(task: TaskName, path: str, data_config: DataConfig) -> DataPreview:
    records = [record for _, record in islice(tables.read_records(path), MAX_PREVIEW_ROWS)]
    if task == "translate":
        records = [tables.unnest_pair(record) for record in records]
    keys = list(records[0])
    if task == "translate":
        selected = columns.find_pair_keys(path, keys, data_config)
    else:
        selected = columns.find_row_keys(path, keys, data_config, labelled=task == "classify")
    role_of = dict(zip(reversed(selected), reversed(ROLES[task]), strict=True))
    return DataPreview(
        columns=tuple(keys),
        selectors=tuple(keys),
        roles=tuple(role_of.get(key, "") for key in keys),
        rows=tuple(tuple(_format_cell(record.get(key)) for key in keys) for record in records),
    )


def _format_cell(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
