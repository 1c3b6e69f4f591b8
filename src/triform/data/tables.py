"""Rows of csv, tsv and json-lines files: two cells each, with the line they began on."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from triform.data.columns import Columns, TableRows, format_names
from triform.data.files import MAX_LINE_BYTES, FileKind, iter_numbered_lines, iter_text_lines
from triform.errors import DataError

MAX_SAMPLE_ROWS = 1000
MAX_SAMPLE_CHARS = 1 << 22

NumberedRow = tuple[int, list[str]]
NumberedCells = tuple[int, str, str]
JsonObject = dict[str, object]


def _read_csv_rows(path: str) -> Iterator[NumberedRow]:
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    row_chars = 0  # characters of the row that is being read

    def lines() -> Iterator[str]:
        nonlocal row_chars
        for text in iter_text_lines(path):
            row_chars += len(text)
            if row_chars > MAX_LINE_BYTES:
                raise csv.Error(
                    f"a row of more than {MAX_LINE_BYTES >> 20} million characters: a quote is left open"
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
            f"is not well-formed csv ({error}); put texts with quotes, commas or line ends in quotes "
            "and double the quotes inside, or save as .tsv",
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
    """What `choose` makes of the first rows."""
    table_rows = _read_csv_rows(path) if kind == "csv" else _read_tsv_rows(path)
    return choose_columns([fields for _, fields in _read_sample(table_rows)])


def read_cells(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns]
) -> Iterator[NumberedCells]:
    """The two chosen cells of every row; `choose` sees the first rows."""
    columns, _, rows = read_table(path, kind, choose_columns)
    for line, fields in rows:
        yield line, fields[columns.first], "" if columns.second is None else fields[columns.second]


def read_table(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns]
) -> tuple[Columns, list[str], Iterator[NumberedRow]]:
    """The chosen columns, the first row of the file, and an iterator over the rows without the header."""
    table_rows = _read_csv_rows(path) if kind == "csv" else _read_tsv_rows(path)
    sample = _read_sample(table_rows)
    if not sample:
        raise DataError("is empty", path=path)
    columns = choose_columns([fields for _, fields in sample])
    min_fields = 1 + max(columns.first, -1 if columns.second is None else columns.second)

    def iter_body() -> Iterator[NumberedRow]:
        has_rows = False
        for line, fields in islice(chain(sample, table_rows), int(columns.has_header), None):
            _validate_width(path, line, fields, kind=kind, min_fields=min_fields, width=len(sample[0][1]))
            yield line, fields
            has_rows = True
        if not has_rows:
            raise DataError("is empty: there is a header and no row", path=path)

    return columns, sample[0][1], iter_body()


def _validate_width(
    path: str, line: int, fields: list[str], *, kind: FileKind, min_fields: int, width: int
) -> None:
    field_count = f"has {len(fields)} field{'s' * (len(fields) != 1)}"
    separator = "comma" if kind == "csv" else "tab"
    if len(fields) < min_fields:
        raise DataError(
            f"{field_count} but needs {min_fields}; mend the row, separating its fields with a {separator}",
            path=path,
            line=line,
        )
    if any(fields[width:]):  # taking the wrong cell for the label would go unnoticed
        remedy = "put texts with commas in quotes" if kind == "csv" else "a text cannot hold a tab"
        raise DataError(f"{field_count} where the first row has {width}; {remedy}", path=path, line=line)


def read_json_lines(path: str) -> Iterator[tuple[int, JsonObject]]:
    """The JSON object of every line that is not blank."""
    has_objects = False
    for line, text in iter_numbered_lines(path):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "") or "nested too deeply"
            raise DataError(
                f"is not JSON ({reason}); every line must be one object (`jq -c '.[]'` turns an array into lines)",
                path=path,
                line=line,
            ) from None
        if not isinstance(value, dict):
            raise DataError(
                'is not a JSON object like {"text": "..."}; `jq -c \'.[]\'` turns an array into lines',
                path=path,
                line=line,
            )
        yield line, value
        has_objects = True
    if not has_objects:
        raise DataError("is empty", path=path)


def get_text(path: str, line: int, record: JsonObject, key: str) -> str:
    """The text under a key; anything but text is an error."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str):
        raise DataError(f"{key!r} holds {json.dumps(value)[:40]}, which is not a text", path=path, line=line)
    return _require_encodable(path, line, key, value)


def get_label(path: str, line: int, record: JsonObject, key: str) -> str:
    """The label under a key, as text: a number is written out."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{key!r} holds {json.dumps(value)[:40]}; a label is a text or a number", path=path, line=line
        )
    return _require_encodable(path, line, key, str(value))


def _require_encodable(path: str, line: int, key: str, text: str) -> str:
    """JSON can spell half a character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{key!r} holds half of a surrogate pair (\\ud...)", path=path, line=line) from None
    return text


def _get_value(path: str, line: int, record: JsonObject, key: str) -> object:
    if key not in record:
        keys: Sequence[str] = list(record)
        raise DataError(f"has no {key!r}; there are {format_names(keys)}", path=path, line=line)
    return record[key]
