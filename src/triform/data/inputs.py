"""Read the texts to predict: the lines of a text file, or one column of a table whose other columns are kept.

A table is read as for training, but needs neither labels nor targets. The text column is the one that the user
selected, else the one with the same name as in the training table, else the one that `triform.data.columns` finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from triform.config import DataConfig, TaskName
from triform.data import columns, readers, tables
from triform.data.files import RECORD_KINDS, FileKind, iter_text_blocks, kind_from_name
from triform.data.folders import list_text_files
from triform.errors import DataError


class InputRow(NamedTuple):
    """A text with its row of the table, and the line on which the row starts."""

    line: int
    text: str
    cells: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A file of texts whose rows are read one at a time."""

    rows: Iterator[InputRow]  # can be read once
    column_names: list[str]  # in order, no two equal; later objects of a .jsonl file may have more
    column: str  # the name of the text column
    description: str = ""  # how the table is read, for the user to check


@dataclass(frozen=True, kw_only=True)
class PredictionInputs:
    """Texts in order, each with its row of the table."""

    texts: list[str]
    column_names: list[str]  # in order, no two equal
    rows: list[dict[str, object]]
    column: str  # the name of the text column
    description: str = ""  # how the table was read, for the user to check


def read_inputs(path: str, task: TaskName, data_config: DataConfig) -> PredictionInputs:
    """Read all texts of a file. The arguments and errors are those of `open_inputs`."""
    table = open_inputs(path, task, data_config)
    input_rows = list(table.rows)
    rows = [row.cells for row in input_rows]
    return PredictionInputs(
        texts=[row.text for row in input_rows],
        column_names=list(dict.fromkeys(chain(table.column_names, chain.from_iterable(rows)))),
        rows=rows,
        column=table.column,
        description=table.description,
    )


def open_inputs(path: str, task: TaskName, data_config: DataConfig) -> InputTable:
    """Open a file of texts.

    Args:
        path: A .csv, .tsv, .jsonl, .parquet or .arrow file, also compressed, and a folder of `datasets` are tables.
            In a folder of text files, each file is a text. Any other file has one text per line.
        task: For translate the source column is read, otherwise the text column.
        data_config: Data settings of the run, overridden by those of this call.

    Raises:
        DataError: The file cannot be read, is empty, or has no such column. Problems of later rows are raised when
            these rows are read.
    """
    kind = kind_from_name(path)
    if kind == "texts":
        return _open_text_files(path, task)
    if kind not in ("csv", "tsv", *RECORD_KINDS):
        column = default_column_name(task)
        lines = (InputRow(line, text, {column: text}) for line, text in readers.read_lines(path))
        return InputTable(rows=lines, column_names=[column], column=column)
    table = (
        _open_records(path, task, data_config)
        if kind in RECORD_KINDS
        else _open_delimited(path, kind, task, data_config)
    )
    return replace(table, description=f"{path}: {table.description}")


def _open_text_files(path: str, task: TaskName) -> InputTable:
    column = default_column_name(task)

    def iter_rows() -> Iterator[InputRow]:
        for number, file in enumerate(list_text_files(path), 1):
            text = "".join(iter_text_blocks(str(file)))
            yield InputRow(number, text, {"file": str(file.relative_to(path)), column: text})

    return InputTable(rows=iter_rows(), column_names=["file", column], column=column)


def inputs_from_texts(texts: Iterable[str], task: TaskName) -> PredictionInputs:
    """Return texts as a table of one column."""
    text_list, column = list(texts), default_column_name(task)
    return PredictionInputs(
        texts=text_list, column_names=[column], rows=[{column: text} for text in text_list], column=column
    )


def default_column_name(task: TaskName) -> str:
    """Return the column name for texts that are not from a table."""
    return "source" if task == "translate" else "text"


def _open_delimited(path: str, kind: FileKind, task: TaskName, data_config: DataConfig) -> InputTable:
    def choose_columns(sample: columns.TableRows) -> columns.Columns:
        _check_separator(path, kind, sample[0])
        resolved_config = _with_training_column(sample[0], task, data_config)
        find_column = columns.find_source_column if task == "translate" else columns.find_text_column
        return find_column(path, sample, resolved_config)

    selected_columns, first_row, rows = tables.read_table(path, kind, choose_columns, data_config.delimiter)
    default_names = [f"column_{column_number}" for column_number in range(1, len(first_row) + 1)]
    default_names[selected_columns.first] = default_column_name(task)
    names = make_unique(first_row if selected_columns.has_header else default_names)
    header_description, column_description = (
        ("a header", repr(first_row[selected_columns.first]))
        if selected_columns.has_header
        else ("no header", selected_columns.first + 1)
    )

    def iter_rows() -> Iterator[InputRow]:
        for line, fields in rows:
            padded_fields = [*fields, *[""] * (len(names) - len(fields))][: len(names)]
            cells: dict[str, object] = dict(zip(names, padded_fields, strict=True))
            yield InputRow(line, padded_fields[selected_columns.first], cells)

    return InputTable(
        rows=iter_rows(),
        column_names=names,
        column=names[selected_columns.first],
        description=f"{header_description}, texts in column {column_description}",
    )


def _check_separator(path: str, kind: FileKind, first_row: Sequence[str]) -> None:
    """Refuse a table of one column whose header has several names with another separator."""
    known_names = (*columns.TEXT_NAMES, *columns.SOURCE_NAMES)
    for separator in (";", "\t", "|", ","):
        names = first_row[0].split(separator)
        if len(first_row) == 1 and len(names) > 1 and columns.match_name(names, known_names) is not None:
            expected = "commas" if kind == "csv" else "tabs"
            raise DataError(
                f"the columns seem to be separated by {separator!r}; a .{kind} file separates them by {expected}",
                path=path,
            )


def _open_records(path: str, task: TaskName, data_config: DataConfig) -> InputTable:
    records = tables.read_records(path)
    first_line, first_record = next(records)  # a file without objects is refused
    names = list(first_record)
    resolved_config = _with_training_column(names, task, data_config)
    if task == "translate":
        key = columns.find_source_key(path, names, resolved_config)
    else:
        key = columns.find_row_keys(path, names, resolved_config, labelled=False)[0]
    rows = (
        InputRow(line, tables.get_text(path, line, record, key), record)
        for line, record in chain([(first_line, first_record)], records)
    )
    return InputTable(rows=rows, column_names=names, column=key, description=f"texts under the key {key!r}")


def _with_training_column(names: Sequence[str], task: TaskName, data_config: DataConfig) -> DataConfig:
    """Return data settings that select the column of the training table by name if this table has that name."""
    setting = "source_column" if task == "translate" else "text_column"
    if getattr(data_config, setting) or data_config.header == "no" or not data_config.train:
        return data_config
    name = _training_column_name(task, data_config)
    if not name or name.strip().casefold() not in (column.strip().casefold() for column in names):
        return data_config
    return (
        replace(data_config, source_column=name) if task == "translate" else replace(data_config, text_column=name)
    )


def _training_column_name(task: TaskName, data_config: DataConfig) -> str:
    """Return the name of the training column; empty if the training table is missing or had no header."""
    kind = kind_from_name(data_config.train)
    if kind not in ("csv", "tsv"):
        return ""

    def choose_columns(sample: columns.TableRows) -> columns.Columns:
        if task == "translate":
            return columns.find_pair_columns(data_config.train, sample, data_config)
        return columns.find_row_columns(data_config.train, sample, data_config, labelled=task == "classify")

    try:
        selected_columns, first_row, _ = tables.read_table(
            data_config.train, kind, choose_columns, data_config.delimiter
        )
    except DataError:
        return ""
    return first_row[selected_columns.first] if selected_columns.has_header else ""


def make_unique(names: Iterable[str], reserved: Iterable[str] = ()) -> list[str]:
    """Number names that occur more than once: a, a_2, a_3."""
    result: list[str] = []
    used = set(reserved)
    last_suffix: dict[str, int] = {}
    for name in names:
        suffix, candidate = last_suffix.get(name, 1), name
        while candidate in used:
            suffix += 1
            candidate = f"{name}_{suffix}"
        last_suffix[name] = suffix
        used.add(candidate)
        result.append(candidate)
    return result
