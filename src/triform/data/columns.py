"""Find the columns of the text and the label in a table, and whether its first row is a header.

With `header = "auto"`, the first rows of a table decide:

1. The table has a header if the user selected a column by name, or if the first row has a known text name and a
   known label name. A single known name counts only if no cell of the first row occurs again below it, because
   the word "content" may also be a text.
2. Without a header, the label column is the first or the last one, whichever has fewer distinct values (on a tie,
   shorter values). The text column is the longest of the others on average.
3. The first row is then still a header if its label never occurs again although other labels repeat, and its
   text is a single short word.

A guessed label column whose values never repeat is refused, because it is more likely an identifier. For pairs, the
names of source and target or of two languages make a header; otherwise the first two columns are used.

Tables to predict need neither a label nor a target (`triform.data.inputs`). In them a column of numbers below a
word also indicates a header.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from triform.config import DataConfig
from triform.errors import ConfigError, DataError

TableRows = Sequence[Sequence[str]]

TEXT_NAMES = (
    *("text", "sentence", "review", "content", "document", "body", "comment", "message"),
    *("tweet", "utterance", "description"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "sentiment", "target", "rating", "stars", "score"),
    *("polarity", "topic", "intent", "y"),
)
SOURCE_NAMES = ("source", "src", "source_text", "input")
TARGET_NAMES = ("target", "tgt", "target_text", "translation", "reference", "output")
NESTED_PAIR = "translation"  # the key of an object with one sentence for each language
_LANGUAGE_NAMES = (
    "ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu hy is it ja ka kk ko lt lv mk ms nl "
    "no pl pt ro ru sk sl sq sr sv sw ta th tr uk ur vi zh arabic bulgarian chinese croatian czech danish "
    "dutch english estonian finnish french german greek hebrew hindi hungarian indonesian irish italian "
    "japanese korean latin latvian lithuanian norwegian persian polish portuguese romanian russian serbian "
    "slovak slovenian spanish swedish turkish ukrainian vietnamese"
)
LANGUAGES = frozenset(_LANGUAGE_NAMES.split())
MAX_LISTED_NAMES = 50  # column names that a message lists at most
MIN_ROWS_TO_DOUBT_LABEL = 20  # rows; a guessed label column that never repeats a value in so many is refused
ONE_COLUMN_ERROR = "expected {}, found only one column; separate columns with commas in .csv and tabs in .tsv files"
HEADER_WORD = re.compile(r"[^\W\d][\w.-]{0,29}")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of text and label, or of source and target."""

    has_header: bool
    first: int
    second: int | None


def _normalise_name(name: str) -> str:
    return name.strip().casefold()


def match_name(names: Sequence[str], known: Sequence[str], *, exclude: int | None = None) -> int | None:
    """Return the index of the first of the `known` names in `names`, or None. Index `exclude` is skipped."""
    normalised = ["" if index == exclude else _normalise_name(name) for index, name in enumerate(names)]
    return next((normalised.index(name) for name in known if name in normalised), None)


def format_names(names: Sequence[str]) -> str:
    """Format names for a message: at most `MAX_LISTED_NAMES`, and long names shortened."""
    formatted = [repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:MAX_LISTED_NAMES]]
    return ", ".join([*formatted, *["..."] * (len(names) > MAX_LISTED_NAMES)])


def require_column(path: str, setting: str, name: str, names: Sequence[str], *, noun: str = "column") -> int:
    """Return the index of a column by its name.

    Raises:
        DataError: There is no such column. The message lists the columns.
    """
    normalised = [_normalise_name(other) for other in names]
    if _normalise_name(name) in normalised:
        return normalised.index(_normalise_name(name))
    candidates = names[:MAX_LISTED_NAMES]
    closest = sorted(
        candidates,
        key=lambda other: (
            -difflib.SequenceMatcher(None, _normalise_name(name), _normalise_name(other[:99])).ratio()
        ),
    )
    available = format_names(closest) + ", ..." * (len(names) > MAX_LISTED_NAMES)
    raise DataError(f"no {noun} {name!r}; set data.{setting} to one of {available}", path=path)


def _resolve_column(path: str, setting: str, value: str, names: Sequence[str] | None, width: int) -> int | None:
    """Return the index of a column given as a name or as a number from 1; None if it is empty."""
    if not value:
        return None
    if not value.isdecimal():
        return require_column(path, setting, value, names or ())
    if not 1 <= _parse_column_number(value) <= width:
        available = f" ({format_names(names)})" if names else ""
        raise DataError(
            f"no column {value[:40]}; set data.{setting} to a number from 1 to {width}{available}",
            path=path,
        )
    return _parse_column_number(value) - 1


def _parse_column_number(column: str) -> int:
    """Parse the number of a column. A very long number becomes one that no table has."""
    return int(column) if len(column) < 10 else 10**9


def _column_cells(rows: TableRows, column: int) -> list[str]:
    return [row[column] if column < len(row) else "" for row in rows]


def _mean_length(rows: TableRows, column: int) -> float:
    return sum(map(len, _column_cells(rows, column))) / max(len(rows), 1)


def _guess_label(rows: TableRows, width: int, text: int | None) -> int | None:
    candidates = [column for column in dict.fromkeys((0, width - 1)) if column != text]
    if text is None and len(candidates) == 1:
        return None  # a single column is the text
    return min(
        candidates,
        key=lambda column: (len(set(_column_cells(rows, column))), _mean_length(rows, column)),
        default=None,
    )


def _guess_text(rows: TableRows, width: int, label: int | None) -> int:
    candidates = [column for column in range(width) if column != label] or [0]
    return max(candidates, key=lambda column: _mean_length(rows, column))


def _first_cell_recurs(rows: TableRows, column: int) -> bool:
    return rows[0][column] in _column_cells(rows[1:], column)


def _is_labelled_header(rows: TableRows) -> bool:
    first_row, body = rows[0], rows[1:]
    matches = [match_name(first_row, TEXT_NAMES), match_name(first_row, LABEL_NAMES)]
    if None not in matches:
        return True
    if any(match is not None for match in matches):
        return not any(_first_cell_recurs(rows, column) for column in range(len(first_row)))
    label = _guess_label(body, len(first_row), None)
    if label is None or _first_cell_recurs(rows, label):
        return False
    labels = _column_cells(body, label)
    text = _guess_text(body, len(first_row), label)
    return len(set(labels)) < len(labels) and HEADER_WORD.fullmatch(first_row[text].strip()) is not None


def _find_language_columns(names: Sequence[str]) -> list[int]:
    """Return the indices of names such as "en", "en-US" or "English"."""
    return [index for index, name in enumerate(names) if re.split("[-_]", _normalise_name(name))[0] in LANGUAGES]


def is_pair_header(rows: TableRows) -> bool:
    """Return whether the first row names a source and a target, or two languages."""
    first_row = rows[0]
    if match_name(first_row, SOURCE_NAMES) is not None and match_name(first_row, TARGET_NAMES) is not None:
        return True
    indices = _find_language_columns(first_row)
    return len({_normalise_name(first_row[index]) for index in indices}) >= 2 and not any(
        _first_cell_recurs(rows, index) for index in indices
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_input_header(rows: TableRows) -> bool:
    """Return whether the first row of a table without labels or targets is a header."""
    first_row, body = rows[0], rows[1:]
    if match_name(first_row, (*SOURCE_NAMES, *TEXT_NAMES)) is not None and not any(
        _first_cell_recurs(rows, column) for column in range(len(first_row))
    ):
        return True
    return bool(body) and any(
        HEADER_WORD.fullmatch(first_row[column].strip()) and all(map(_is_number, _column_cells(body, column)))
        for column in range(len(first_row))
    )


def _has_header(
    rows: TableRows,
    data_config: DataConfig,
    requested: dict[str, str],
    looks_like_header: Callable[[TableRows], bool],
) -> bool:
    names = {setting: value for setting, value in requested.items() if value and not value.isdecimal()}
    if data_config.header == "no" and names:
        setting, value = next(iter(names.items()))
        raise ConfigError(
            f"data.{setting}={value} is a name, but data.header=no; use the number of the column, counted from 1"
        )
    return data_config.header == "yes" or (
        data_config.header == "auto" and (bool(names) or looks_like_header(rows))
    )


def find_row_columns(path: str, rows: TableRows, data_config: DataConfig, *, labelled: bool) -> Columns:
    """Find the columns of text and label from the first rows of a table.

    Args:
        path: The file, for error messages.
        rows: The first rows.
        data_config: Data settings, which may name the columns.
        labelled: Whether a label is required. If not, a label column is never guessed.
    """
    requested = {"text_column": data_config.text_column, "label_column": data_config.label_column}
    if not labelled and _is_absent(data_config.label_column, rows[0]):
        requested["label_column"] = ""
    has_header = _has_header(rows, data_config, requested, _is_labelled_header)
    names, width = (rows[0] if has_header else None), len(rows[0])
    body = rows[1:] if has_header and len(rows) > 1 else rows
    text = _resolve_column(path, "text_column", requested["text_column"], names, width)
    label = _resolve_column(path, "label_column", requested["label_column"], names, width)
    if names is not None:
        text = match_name(names, TEXT_NAMES, exclude=label) if text is None else text
        label = match_name(names, LABEL_NAMES, exclude=text) if label is None else label
    known_label = label
    label = _guess_label(body, width, text) if label is None else label
    text = _guess_text(body, width, label) if text is None else text
    if labelled:
        _validate_label(path, body, label=label, is_known=known_label is not None, text=text)
        return Columns(has_header, text, label)
    return Columns(has_header, text, None if known_label == text else known_label)


def _is_absent(column: str, first_row: Sequence[str]) -> bool:
    if column.isdecimal():
        return _parse_column_number(column) > len(first_row)
    return _normalise_name(column) not in map(_normalise_name, first_row)


def _validate_label(path: str, body: TableRows, *, label: int | None, is_known: bool, text: int) -> None:
    if label is None:
        raise DataError(ONE_COLUMN_ERROR.format("a text and a label column"), path=path)
    if label == text:
        raise DataError(
            f"column {text + 1} cannot be both text and label; set data.text_column and data.label_column",
            path=path,
        )
    if not is_known and len(body) >= MIN_ROWS_TO_DOUBT_LABEL and len(set(_column_cells(body, label))) == len(body):
        raise DataError(
            f"no column looks like a label (the values of column {label + 1} never repeat); set data.label_column",
            path=path,
        )


def find_pair_columns(path: str, rows: TableRows, data_config: DataConfig) -> Columns:
    """Find the columns of source and target from the first rows of a table."""
    requested = {"source_column": data_config.source_column, "target_column": data_config.target_column}
    has_header = _has_header(rows, data_config, requested, is_pair_header)
    names, width = (rows[0] if has_header else None), len(rows[0])
    if width < 2:
        raise DataError(ONE_COLUMN_ERROR.format("a source and a target column"), path=path)
    source = _resolve_column(path, "source_column", requested["source_column"], names, width)
    target = _resolve_column(path, "target_column", requested["target_column"], names, width)
    source, target = resolve_pair_indices(names or ("",) * width, source, target)
    if source == target:
        raise DataError(
            f"column {source + 1} cannot be both source and target; set data.source_column and data.target_column",
            path=path,
        )
    return Columns(has_header, source, target)


def resolve_pair_indices(names: Sequence[str], source: int | None, target: int | None) -> tuple[int, int]:
    """Find the sides that the user did not select: by name, then by the order of languages, then by position."""
    source = match_name(names, SOURCE_NAMES, exclude=target) if source is None else source
    target = match_name(names, TARGET_NAMES, exclude=source) if target is None else target
    order = [*_find_language_columns(names), *range(len(names))]
    if source is None:
        source = next(index for index in order if index != target)
    if target is None:
        target = next((index for index in order if index != source), source)
    return source, target


def find_text_column(path: str, rows: TableRows, data_config: DataConfig) -> Columns:
    """Find the text column of a table to predict, which need not have labels."""
    header = data_config.header
    if header == "auto" and _is_input_header(rows):
        header = "yes"
    columns = find_row_columns(path, rows, replace(data_config, header=header), labelled=False)
    return replace(columns, second=None)


def find_source_column(path: str, rows: TableRows, data_config: DataConfig) -> Columns:
    """Find the source column of a table to predict, which need not have targets."""
    first_row, width = rows[0], len(rows[0])
    target_column = "" if _is_absent(data_config.target_column, first_row) else data_config.target_column
    requested = {"source_column": data_config.source_column, "target_column": target_column}
    has_header = _has_header(
        rows, data_config, requested, lambda rows: is_pair_header(rows) or _is_input_header(rows)
    )
    names = first_row if has_header else None
    source = _resolve_column(path, "source_column", data_config.source_column, names, width)
    target = _resolve_column(path, "target_column", target_column, names, width)
    return Columns(has_header, _find_source_index(names or ("",) * width, source, target), None)


def _find_source_index(names: Sequence[str], source: int | None, target: int | None) -> int:
    """Return the index of the source, as for pairs. Without a source or language name, a text name also counts."""
    if (
        source is None
        and match_name(names, SOURCE_NAMES, exclude=target) is None
        and not _find_language_columns(names)
    ):
        source = match_name(names, TEXT_NAMES, exclude=target)
    return resolve_pair_indices(names, source, target if len(names) > 1 else None)[0]


def find_source_key(path: str, keys: Sequence[str], data_config: DataConfig) -> str:
    """Find the key of the source in JSON objects, which need not have targets."""
    if not keys:
        raise DataError("the object is empty; a key for the source is needed", path=path)
    requested = data_config.source_column
    source = require_column(path, "source_column", requested, keys, noun="key") if requested else None
    target = (
        None
        if _is_absent(data_config.target_column, keys)
        else match_name(keys, (_normalise_name(data_config.target_column),))
    )
    return keys[_find_source_index(keys, source, target)]


def find_row_keys(path: str, keys: Sequence[str], data_config: DataConfig, *, labelled: bool) -> tuple[str, str]:
    """Find the keys of text and label in JSON objects by name. Without `labelled`, the label key may be empty."""
    present = _normalise_name(data_config.label_column) in map(_normalise_name, keys)
    requested_label = data_config.label_column if labelled or present else ""
    label = require_column(path, "label_column", requested_label, keys, noun="key") if requested_label else None
    if data_config.text_column:
        text: int | None = require_column(path, "text_column", data_config.text_column, keys, noun="key")
    else:
        text = match_name(keys, TEXT_NAMES, exclude=label)
    label = match_name(keys, LABEL_NAMES, exclude=text) if label is None else label
    for index, setting, example in ((text, "text_column", "text"), (label, "label_column", "label")):
        if index is None and (labelled or setting == "text_column"):
            available = format_names(keys) or "none"
            raise DataError(
                f"no key is named like {example!r}; set data.{setting} to one of {available}", path=path
            )
    assert text is not None
    return keys[text], "" if label is None else keys[label]


def find_pair_keys(path: str, keys: Sequence[str], data_config: DataConfig) -> tuple[str, str]:
    """Find the keys of source and target in JSON objects."""
    if len(keys) < 2:
        raise DataError("the object has fewer than two keys; a source and a target are needed", path=path)
    requested = {"source_column": data_config.source_column, "target_column": data_config.target_column}
    indices = [
        require_column(path, *request, keys, noun="key") if request[1] else None for request in requested.items()
    ]
    source, target = resolve_pair_indices(keys, *indices)
    return keys[source], keys[target]
