"""Read the rows of CSV, TSV, JSON Lines and Parquet files, with the line on which each row starts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from triform.data.columns import Columns, TableRows, format_names
from triform.data.files import (
    MAX_LINE_BYTES,
    FileKind,
    iter_numbered_lines,
    iter_text_lines,
    kind_from_name,
    open_bytes,
)
from triform.errors import DataError, require_package

MAX_SAMPLE_ROWS = 1000
MAX_SAMPLE_CHARS = 1 << 22
PARQUET_BATCH_ROWS = 256  # rows that are converted at once

NumberedRow = tuple[int, list[str]]
NumberedCells = tuple[int, str, str]
JsonObject = dict[str, object]


def _read_csv_rows(path: str) -> Iterator[NumberedRow]:
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    row_chars = 0  # characters of the current row

    def lines() -> Iterator[str]:
        nonlocal row_chars
        for text in iter_text_lines(path):
            row_chars += len(text)
            if row_chars > MAX_LINE_BYTES:
                raise csv.Error(
                    f"a row has more than {MAX_LINE_BYTES >> 20} million characters: a quote is not closed"
                )
            yield text

    reader = csv.reader(lines(), strict=True)
    line = 1
    try:
        for fields in reader:
            row_chars = 0
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"invalid CSV ({error}); quote texts that contain quotes, commas or line ends "
            "and double the quotes inside them, or save the table as .tsv",
            path=path,
            line=line,
        ) from None


def _read_tsv_rows(path: str) -> Iterator[NumberedRow]:
    for line, text in iter_numbered_lines(path):
        if text:
            yield line, text.split("\t")


def _read_sample(table_rows: Iterator[NumberedRow]) -> list[NumberedRow]:
    sample: list[NumberedRow] = []
    n_chars = 0
    for line, fields in islice(table_rows, MAX_SAMPLE_ROWS):
        sample.append((line, fields))
        n_chars += sum(map(len, fields))
        if n_chars > MAX_SAMPLE_CHARS:
            break
    return sample


def detect_columns(path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns]) -> Columns:
    """Return the columns that `choose_columns` selects from the first rows of a table."""
    table_rows = _read_csv_rows(path) if kind == "csv" else _read_tsv_rows(path)
    return choose_columns([fields for _, fields in _read_sample(table_rows)])


def read_cells(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns]
) -> Iterator[NumberedCells]:
    """Yield the two selected cells of every row. `choose_columns` receives the first rows."""
    columns, _, rows = read_table(path, kind, choose_columns)
    for line, fields in rows:
        yield line, fields[columns.first], "" if columns.second is None else fields[columns.second]


def read_table(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns]
) -> tuple[Columns, list[str], Iterator[NumberedRow]]:
    """Return the selected columns, the first row of the file, and an iterator over the rows without the header."""
    table_rows = _read_csv_rows(path) if kind == "csv" else _read_tsv_rows(path)
    sample = _read_sample(table_rows)
    if not sample:
        raise DataError("the file is empty", path=path)
    columns = choose_columns([fields for _, fields in sample])
    min_fields = 1 + max(columns.first, -1 if columns.second is None else columns.second)

    def iter_body() -> Iterator[NumberedRow]:
        has_rows = False
        for line, fields in islice(chain(sample, table_rows), int(columns.has_header), None):
            _validate_width(path, line, fields, kind=kind, min_fields=min_fields, width=len(sample[0][1]))
            yield line, fields
            has_rows = True
        if not has_rows:
            raise DataError("the file is empty: it has a header but no rows", path=path)

    return columns, sample[0][1], iter_body()


def _validate_width(
    path: str, line: int, fields: list[str], *, kind: FileKind, min_fields: int, width: int
) -> None:
    n_fields = len(fields)
    separator = "comma" if kind == "csv" else "tab"
    if len(fields) < min_fields:
        raise DataError(
            f"expected at least {min_fields} columns, found {n_fields}; separate the columns with a {separator}",
            path=path,
            line=line,
        )
    if any(fields[width:]):  # otherwise a wrong cell could become the label unnoticed
        remedy = "quote texts that contain commas" if kind == "csv" else "remove tabs from texts"
        raise DataError(f"expected {width} columns, found {n_fields}; {remedy}", path=path, line=line)


def read_records(
    path: str, select_columns: Callable[[list[str]], Sequence[str]] = lambda names: names
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the objects of a JSON Lines file, or the rows of a Parquet file as objects.

    Args:
        path: The file.
        select_columns: Returns which columns of a Parquet file are read, given the names of all of them. Those that
            the file does not have are left out.
    """
    if kind_from_name(path) == "parquet":
        return _read_parquet_rows(path, select_columns)
    return read_json_lines(path)


def _read_parquet_rows(
    path: str, select_columns: Callable[[list[str]], Sequence[str]]
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the rows of a Parquet file, counted from 1. One row group is in memory at a time."""
    require_package("pyarrow", extra="arrow", purpose=f"{path}: a .parquet file")
    from pyarrow import ArrowException, parquet

    row = 0
    with open_bytes(path) as file:
        try:
            table = parquet.ParquetFile(file)
            names = list(table.schema_arrow.names)
            selected = [name for name in select_columns(names) if name in names]
            for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=selected, use_threads=False):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
        except (ArrowException, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"the Parquet file is damaged or is not one ({reason})", path=path) from None
    if not row:
        raise DataError("the file is empty", path=path)


def read_json_lines(path: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield the JSON object of every line that is not blank."""
    has_objects = False
    for line, text in iter_numbered_lines(path):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "") or "nested too deeply"
            raise DataError(
                f"the line is not JSON ({reason}); each line must be one object (`jq -c '.[]'` splits an array)",
                path=path,
                line=line,
            ) from None
        if not isinstance(value, dict):
            raise DataError(
                'the line is not a JSON object like {"text": "..."}; `jq -c \'.[]\'` splits an array into lines',
                path=path,
                line=line,
            )
        yield line, value
        has_objects = True
    if not has_objects:
        raise DataError("the file is empty", path=path)


def get_text(path: str, line: int, record: JsonObject, key: str) -> str:
    """Return the text under a key. Any other type of value is an error."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str):
        raise DataError(
            f"expected a text under {key!r}, found {json.dumps(value, default=str)[:40]}", path=path, line=line
        )
    return _require_encodable(path, line, key, value)


def get_label(path: str, line: int, record: JsonObject, key: str) -> str:
    """Return the label under a key as text. A number is converted."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str | int | float):
        raise DataError(
            f"expected a text or a number under {key!r}, found {json.dumps(value, default=str)[:40]}",
            path=path,
            line=line,
        )
    return _require_encodable(path, line, key, str(value))


def _require_encodable(path: str, line: int, key: str, text: str) -> str:
    """Refuse half of a surrogate pair, which JSON allows but UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"the text under {key!r} contains half of a surrogate pair (\\ud...)", path=path, line=line
        ) from None
    return text


def _get_value(path: str, line: int, record: JsonObject, key: str) -> object:
    if key not in record:
        keys: Sequence[str] = list(record)
        raise DataError(f"no key {key!r}; the keys are {format_names(keys)}", path=path, line=line)
    return record[key]
