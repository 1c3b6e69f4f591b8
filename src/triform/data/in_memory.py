"""Data that is passed from Python instead of a file: data frames and iterables of rows.

Training copies such data to a JSON Lines file in the run folder (`write_copy`), so that the run can be resumed,
evaluated and audited like any other. Frames are recognised by their methods; pandas and polars are not imported:

| data | rows |
|---|---|
| pandas, polars or pyarrow table | the columns that the task needs, found as in a file |
| iterable of dictionaries, such as a `datasets.Dataset` | the same |
| iterable of pairs | text and label, or source and target |
| iterable of strings, also a column of a frame | documents (generate), or texts to predict |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from triform.config import DataConfig, TaskName
from triform.data import columns
from triform.data.tables import format_value, unnest_pair
from triform.errors import DataError
from triform.io.errors import write_errors
from triform.io.files import write_bytes

KEYS: dict[TaskName, tuple[str, str]] = {
    "classify": ("text", "label"),
    "generate": ("text", ""),
    "translate": ("source", "target"),
}
ROW_FORMS: dict[TaskName, str] = {
    "classify": "pairs (text, label), dictionaries or a data frame",
    "generate": "strings, dictionaries or a data frame",
    "translate": "pairs (source, target), dictionaries or a data frame",
}


def is_in_memory(data: object) -> bool:
    """Return whether data is passed as an object rather than as the name of a file."""
    return not isinstance(data, str | Path) and data is not None


def write_copy(data: Any, task: TaskName, data_config: DataConfig, folder: Path, name: str) -> Path:
    """Write data to a JSON Lines file named after its content, unless the file exists, and return its path.

    Args:
        data: A data frame, or an iterable of rows.
        task: The task that reads it.
        data_config: The names of the columns.
        folder: Where to write the file.
        name: The start of the name of the file, and the name of the data in messages.

    Raises:
        DataError: The data has no rows, lacks a column, or has a row that cannot be used.
    """
    content = "".join(
        json.dumps(row, ensure_ascii=False) + "\n" for row in iter_examples(data, task, data_config, name)
    ).encode()
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    if not path.exists():
        with write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
    return path


def iter_examples(data: Any, task: TaskName, data_config: DataConfig, name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of data with the columns that the task reads: text and label, text, or source and target."""
    rows = iter_rows(data, name)
    first_key, second_key = KEYS[task]
    names = {key: str(getattr(data_config, f"{key}_column")) or key for key in (first_key, second_key) if key}
    selected: tuple[str, str] | None = None
    number = 0
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            record = unnest_pair(dict(row)) if task == "translate" else row
            if selected is None:
                selected = _find_keys(name, record, task, data_config)
                names = dict(zip(KEYS[task], selected, strict=True))
            values = [_get_cell(name, number, record, key) for key in selected if key]
        elif isinstance(row, str):
            values = [row]
        elif isinstance(row, tuple | list):
            values = list(row)
        else:
            raise _row_form_error(name, number, row, task)
        if len(values) != (2 if second_key else 1):
            raise _row_form_error(name, number, row, task)
        example = {names[first_key]: _require_text(name, number, first_key, values[0])}
        if second_key:
            convert = _require_label if task == "classify" else _require_text
            example[names[second_key]] = convert(name, number, second_key, values[1])
        yield example
    if not number:
        raise DataError("there are no rows", path=name)


def iter_texts(data: Any, task: TaskName, data_config: DataConfig, name: str = "texts") -> Iterator[str]:
    """Yield the texts to predict: strings, or the text column of a frame or of dictionaries."""
    key = ""
    for number, row in enumerate(iter_rows(data, name), 1):
        if isinstance(row, Mapping):
            if not key:
                names = [str(column) for column in row]
                find_key = columns.find_source_key if task == "translate" else _find_text_key
                key = find_key(name, names, data_config)
            row = _get_cell(name, number, row, key)
        yield _require_text(name, number, key or "text", row)


def iter_rows(data: Any, name: str) -> Iterator[Any]:
    """Yield the rows of a frame as dictionaries, or the items of an iterable.

    Raises:
        DataError: The object is neither.
    """
    if hasattr(data, "collect_schema") and not hasattr(data, "iter_rows"):
        raise DataError("a lazy frame has no rows yet; pass frame.collect()", path=name)
    if hasattr(data, "iter_rows") and hasattr(data, "columns"):  # polars
        yield from data.iter_rows(named=True)
    elif hasattr(data, "itertuples") and hasattr(data, "columns"):  # pandas
        names = [str(column) for column in data.columns]
        yield from (dict(zip(names, row, strict=True)) for row in data.itertuples(index=False, name=None))
    elif hasattr(data, "to_batches"):  # pyarrow
        yield from chain.from_iterable(batch.to_pylist() for batch in data.to_batches(max_chunksize=256))
    elif isinstance(data, Iterable) and not isinstance(data, bytes | Mapping):
        yield from data
    else:
        raise DataError(
            f"expected the name of a file, a data frame or an iterable of rows, found {type(data).__name__}",
            path=name,
        )


def _find_keys(name: str, record: Mapping[str, object], task: TaskName, data_config: DataConfig) -> tuple[str, str]:
    names = [str(key) for key in record]
    if task == "translate":
        return columns.find_pair_keys(name, names, data_config)
    text, label = columns.find_row_keys(name, names, data_config, labelled=task == "classify")
    return text, label if task == "classify" else ""


def _find_text_key(name: str, names: list[str], data_config: DataConfig) -> str:
    return columns.find_row_keys(name, names, data_config, labelled=False)[0]


def _get_cell(name: str, row: int, record: Mapping[Any, object], key: str) -> object:
    if key not in record:
        keys = columns.format_names([str(other) for other in record])
        raise DataError(f"no column {key!r}; the columns are {keys}", path=name, line=row, unit="row")
    return record[key]


def _require_text(name: str, row: int, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"expected a text as {key}, found {_describe(value)}", path=name, line=row, unit="row")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"the {key} contains half of a surrogate pair", path=name, line=row, unit="row") from None
    return str(value)


def _require_label(name: str, row: int, key: str, value: Any) -> str:
    scalar = value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value  # of NumPy
    if _is_missing(scalar) or not isinstance(scalar, str | int | float) or not str(scalar).strip():
        message = f"expected a text or a number as {key}, found {_describe(value)}"
        raise DataError(message, path=name, line=row, unit="row")
    return _require_text(name, row, key, str(scalar))


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or one of the missing values of pandas."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value, and neither has an array
        return True


def _describe(value: Any) -> str:
    if _is_missing(value) and not hasattr(value, "__len__"):
        return f"a missing value ({value})"
    return f"{format_value(value)} ({type(value).__name__})"


def _row_form_error(name: str, row: int, value: object, task: TaskName) -> DataError:
    description = f"{format_value(value)} ({type(value).__name__})"
    return DataError(f"{task} needs {ROW_FORMS[task]}, found {description}", path=name, line=row, unit="row")
