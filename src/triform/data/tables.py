"""Read the rows of CSV, TSV, JSON Lines, Parquet and Arrow files, with the line on which each row starts."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from triform.data.arrow_files import read_arrow_rows
from triform.data.columns import NESTED_PAIR, Columns, TableRows, format_names
from triform.data.files import (
    MAX_LINE_BYTES,
    FileKind,
    iter_numbered_lines,
    iter_text_lines,
    kind_from_name,
    row_error,
)
from triform.errors import DataError

MAX_SAMPLE_ROWS = 1000
MAX_SAMPLE_CHARS = 1 << 22
MAX_HEAD_LINES = 1000  # lines from which the delimiter of a .csv file is detected
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}  # by the values of `data.delimiter`
DELIMITER_NAMES = {character: name for name, character in DELIMITERS.items()}
DELIMITER_LINE = re.compile(r"sep=([,;\t|])\r?\n?", re.IGNORECASE)

NumberedRow = tuple[int, list[str]]
NumberedCells = tuple[int, str, str]
JsonObject = dict[str, object]


def _open_table(path: str, kind: FileKind, delimiter: str) -> tuple[str, Iterator[NumberedRow]]:
    """Return the name of the delimiter of a table, and its rows."""
    if kind == "tsv":
        return "tab", _read_tsv_rows(path)
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    text_lines = iter_text_lines(path)
    head, line = _read_head(text_lines), 1
    if head and (declared := DELIMITER_LINE.fullmatch(head[0])):  # a line that Excel writes and reads
        delimiter = DELIMITER_NAMES[declared[1]] if delimiter == "auto" else delimiter
        del head[0]
        line = 2
    delimiter = detect_delimiter(head) if delimiter == "auto" else delimiter
    return delimiter, _read_csv_rows(path, chain(head, text_lines), DELIMITERS[delimiter], line)


def _read_head(text_lines: Iterator[str]) -> list[str]:
    """Return the first lines, from which the delimiter is detected."""
    head: list[str] = []
    n_chars = 0
    for text in islice(text_lines, MAX_HEAD_LINES):
        head.append(text)
        n_chars += len(text)
        if n_chars > MAX_SAMPLE_CHARS:
            break
    return head


def _read_csv_rows(path: str, text_lines: Iterable[str], delimiter: str, line: int) -> Iterator[NumberedRow]:
    """Yield the rows of CSV lines, the first of which is line number `line`."""
    row_chars = 0  # characters of the current row

    def lines() -> Iterator[str]:
        nonlocal row_chars
        for text in text_lines:
            row_chars += len(text)
            if row_chars > MAX_LINE_BYTES:
                raise csv.Error(
                    f"a row has more than {MAX_LINE_BYTES >> 20} million characters: a quote is not closed"
                )
            yield text

    reader = csv.reader(lines(), strict=True, delimiter=delimiter)
    first_line = line
    try:
        for fields in reader:
            row_chars = 0
            if fields:
                yield line, fields
            line = reader.line_num + first_line
    except csv.Error as error:
        raise DataError(
            f"invalid CSV ({error}); quote texts that contain quotes, commas or line ends "
            "and double the quotes inside them, or save the table as .tsv",
            path=path,
            line=line,
        ) from None


def detect_delimiter(lines: Sequence[str]) -> str:
    r"""Return the name of the delimiter that gives most rows the number of columns of the first row, at least two.

    Without one that does so for more than half of the rows, it is the comma.

    >>> detect_delimiter(["Text;Label\n", "Good, but long;pos\n"]), detect_delimiter(["one; two\n", "three\n"])
    ('semicolon', 'comma')
    """
    shares = {"comma": 0.5}
    for name, delimiter in DELIMITERS.items():
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            continue
        if widths and widths[0] > 1 and widths.count(widths[0]) / len(widths) > max(shares.values()):
            shares[name] = widths.count(widths[0]) / len(widths)
    return max(shares, key=lambda name: shares[name])


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


def detect_columns(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns], delimiter: str = "auto"
) -> Columns:
    """Return the columns that `choose_columns` selects from the first rows of a table."""
    _, table_rows = _open_table(path, kind, delimiter)
    return choose_columns([fields for _, fields in _read_sample(table_rows)])


def read_cells(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns], delimiter: str = "auto"
) -> Iterator[NumberedCells]:
    """Yield the two selected cells of every row. `choose_columns` receives the first rows."""
    columns, _, rows = read_table(path, kind, choose_columns, delimiter)
    for line, fields in rows:
        yield line, fields[columns.first], "" if columns.second is None else fields[columns.second]


def read_table(
    path: str, kind: FileKind, choose_columns: Callable[[TableRows], Columns], delimiter: str = "auto"
) -> tuple[Columns, list[str], Iterator[NumberedRow]]:
    """Return the selected columns, the first row of the file, and an iterator over the rows without the header.

    Args:
        path: The file.
        kind: "csv" or "tsv".
        choose_columns: Selects the columns, given the first rows.
        delimiter: `data.delimiter`, for .csv files.
    """
    delimiter, table_rows = _open_table(path, kind, delimiter)
    sample = _read_sample(table_rows)
    if not sample:
        raise DataError("the file is empty", path=path)
    columns = choose_columns([fields for _, fields in sample])
    min_fields = 1 + max(columns.first, -1 if columns.second is None else columns.second)

    def iter_body() -> Iterator[NumberedRow]:
        has_rows = False
        for line, fields in islice(chain(sample, table_rows), int(columns.has_header), None):
            _validate_width(path, line, fields, delimiter=delimiter, min_fields=min_fields, width=len(sample[0][1]))
            yield line, fields
            has_rows = True
        if not has_rows:
            raise DataError("the file is empty: it has a header but no rows", path=path)

    return columns, sample[0][1], iter_body()


def _validate_width(
    path: str, line: int, fields: list[str], *, delimiter: str, min_fields: int, width: int
) -> None:
    n_fields = len(fields)
    if len(fields) < min_fields:
        raise DataError(
            f"expected at least {min_fields} columns, found {n_fields}; separate the columns with a {delimiter}",
            path=path,
            line=line,
        )
    if any(fields[width:]):  # otherwise a wrong cell could become the label unnoticed
        remedy = "remove tabs from texts" if delimiter == "tab" else f"quote texts that contain {delimiter}s"
        raise DataError(f"expected {width} columns, found {n_fields}; {remedy}", path=path, line=line)


def read_records(
    path: str, select_columns: Callable[[list[str]], Sequence[str]] = lambda names: names
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the objects of a JSON Lines file, or the rows of a Parquet or Arrow file or of a dataset as objects.

    Args:
        path: The file or folder.
        select_columns: Returns which columns are read, given the names of all of them. Those that the file does not
            have are left out. From a JSON Lines file, all are read.
    """
    kind = kind_from_name(path)
    if kind in ("parquet", "arrow", "dataset"):
        return read_arrow_rows(path, kind, select_columns)
    return read_json_lines(path)


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


def unnest_pair(record: JsonObject) -> JsonObject:
    """Return the object under `translation`, where many published datasets have the sentences of two languages."""
    nested = record.get(NESTED_PAIR)
    return nested if isinstance(nested, dict) else record


def get_text(path: str, line: int, record: JsonObject, key: str) -> str:
    """Return the text under a key. Any other type of value is an error."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str):
        raise row_error(f"expected a text under {key!r}, found {format_value(value)}", path, line)
    return _require_encodable(path, line, key, value)


def get_label(path: str, line: int, record: JsonObject, key: str) -> str:
    """Return the label under a key as text. A number is converted."""
    value = _get_value(path, line, record, key)
    if not isinstance(value, str | int | float) or value != value:
        raise row_error(f"expected a text or a number under {key!r}, found {format_value(value)}", path, line)
    return _require_encodable(path, line, key, str(value))


def format_value(value: object) -> str:
    """Return the start of a value for a message."""
    return json.dumps(value, default=str, ensure_ascii=False)[:40]


def _require_encodable(path: str, line: int, key: str, text: str) -> str:
    """Refuse half of a surrogate pair, which JSON allows but UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise row_error(f"the text under {key!r} contains half of a surrogate pair (\\ud...)", path, line) from None
    return text


def _get_value(path: str, line: int, record: JsonObject, key: str) -> object:
    if key not in record:
        keys: Sequence[str] = list(record)
        raise row_error(f"no key {key!r}; the keys are {format_names(keys)}", path, line)
    return record[key]
