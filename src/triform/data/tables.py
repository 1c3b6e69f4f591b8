"""Rows of csv, tsv and json-lines files: two cells each, with the line they began on."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from triform.data.columns import Columns, Rows, listed
from triform.data.files import MAX_LINE_BYTES, Kind, decoded_lines, numbered_lines
from triform.errors import DataError

SAMPLE_ROWS = 1000
SAMPLE_CHARACTERS = 1 << 22

Record = tuple[int, list[str]]
Cells = tuple[int, str, str]
Object = dict[str, object]


def _csv_records(path: str) -> Iterator[Record]:
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    held = 0  # characters of the row that is being read

    def lines() -> Iterator[str]:
        nonlocal held
        for text in decoded_lines(path):
            held += len(text)
            if held > MAX_LINE_BYTES:
                raise csv.Error(
                    f"a row of more than {MAX_LINE_BYTES >> 20} million characters: a quote is left open"
                )
            yield text

    reader = csv.reader(lines(), strict=True)
    line = 1
    try:
        for fields in reader:
            held = 0
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


def _tsv_records(path: str) -> Iterator[Record]:
    for line, text in numbered_lines(path):
        if text:
            yield line, text.split("\t")


def _sample(records: Iterator[Record]) -> list[Record]:
    taken: list[Record] = []
    characters = 0
    for line, fields in islice(records, SAMPLE_ROWS):
        taken.append((line, fields))
        characters += sum(map(len, fields))
        if characters > SAMPLE_CHARACTERS:
            break
    return taken


def columns_of(path: str, kind: Kind, choose: Callable[[Rows], Columns]) -> Columns:
    """What `choose` makes of the first rows."""
    records = _csv_records(path) if kind == "csv" else _tsv_records(path)
    return choose([fields for _, fields in _sample(records)])


def delimited(path: str, kind: Kind, choose: Callable[[Rows], Columns]) -> Iterator[Cells]:
    """The two chosen cells of every row; `choose` sees the first rows."""
    columns, _, rows = whole_rows(path, kind, choose)
    for line, fields in rows:
        yield line, fields[columns.first], "" if columns.second is None else fields[columns.second]


def whole_rows(
    path: str, kind: Kind, choose: Callable[[Rows], Columns]
) -> tuple[Columns, list[str], Iterator[Record]]:
    """The chosen columns, the first row of the file, and an iterator over the rows without the header."""
    records = _csv_records(path) if kind == "csv" else _tsv_records(path)
    sample = _sample(records)
    if not sample:
        raise DataError("is empty", path=path)
    columns = choose([fields for _, fields in sample])
    needed = 1 + max(columns.first, -1 if columns.second is None else columns.second)

    def rows() -> Iterator[Record]:
        some = False
        for line, fields in islice(chain(sample, records), int(columns.header), None):
            _check_width(path, line, fields, kind=kind, needed=needed, width=len(sample[0][1]))
            yield line, fields
            some = True
        if not some:
            raise DataError("is empty: there is a header and no row", path=path)

    return columns, sample[0][1], rows()


def _check_width(path: str, line: int, fields: list[str], *, kind: Kind, needed: int, width: int) -> None:
    found = f"has {len(fields)} field{'s' * (len(fields) != 1)}"
    separator = "comma" if kind == "csv" else "tab"
    if len(fields) < needed:
        raise DataError(
            f"{found} but needs {needed}; mend the row, separating its fields with a {separator}",
            path=path,
            line=line,
        )
    if any(fields[width:]):  # taking the wrong cell for the label would go unnoticed
        remedy = "put texts with commas in quotes" if kind == "csv" else "a text cannot hold a tab"
        raise DataError(f"{found} where the first row has {width}; {remedy}", path=path, line=line)


def objects(path: str) -> Iterator[tuple[int, Object]]:
    """The JSON object of every line that is not blank."""
    some = False
    for line, text in numbered_lines(path):
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
        some = True
    if not some:
        raise DataError("is empty", path=path)


def text_value(path: str, line: int, record: Object, key: str) -> str:
    """The text under a key; anything but text is an error."""
    value = _value(path, line, record, key)
    if not isinstance(value, str):
        raise DataError(f"{key!r} holds {json.dumps(value)[:40]}, which is not a text", path=path, line=line)
    return _whole(path, line, key, value)


def label_value(path: str, line: int, record: Object, key: str) -> str:
    """The label under a key, as text: a number is written out."""
    value = _value(path, line, record, key)
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{key!r} holds {json.dumps(value)[:40]}; a label is a text or a number", path=path, line=line
        )
    return _whole(path, line, key, str(value))


def _whole(path: str, line: int, key: str, text: str) -> str:
    """JSON can spell half a character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{key!r} holds half of a surrogate pair (\\ud...)", path=path, line=line) from None
    return text


def _value(path: str, line: int, record: Object, key: str) -> object:
    if key not in record:
        there: Sequence[str] = list(record)
        raise DataError(f"has no {key!r}; there are {listed(there)}", path=path, line=line)
    return record[key]
