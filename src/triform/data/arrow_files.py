"""Read the rows of Parquet and Arrow files and of folders that `datasets.save_to_disk` writes. Needs pyarrow.

An Arrow file is in the file format (also called Feather) or in the streaming format. The features that `datasets`
stores in a schema are used in one way: the numbers of a class label become their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, BinaryIO

from triform.config.merging import is_url
from triform.data.files import open_bytes
from triform.data.folders import list_dataset_files
from triform.errors import DataError, require_package

BATCH_ROWS = 256  # rows that are converted at once
FILE_MAGIC = b"ARROW1"  # the start of a file in the file format; the streaming format has none
FEATURES_KEY = b"huggingface"  # of the metadata of a schema

ArrowRecord = dict[str, object]
SelectColumns = Callable[[list[str]], Sequence[str]]


def read_arrow_rows(path: str, kind: str, select_columns: SelectColumns) -> Iterator[tuple[int, ArrowRecord]]:
    """Yield the rows of a file or folder as objects, counted from 1.

    Args:
        path: The file or folder.
        kind: "parquet", "arrow" or "dataset".
        select_columns: Returns which columns are read, given the names of all of them. Those that the file does not
            have are left out.
    """
    noun = {"parquet": "a .parquet file", "arrow": "an Arrow file", "dataset": "a folder of datasets"}[kind]
    require_package("pyarrow", extra="arrow", purpose=f"{path}: {noun}")
    files = list_dataset_files(path) if kind == "dataset" else [path]
    row = 0
    for file in files:
        for record in _read_file(file, "parquet" if kind == "parquet" else "arrow", select_columns):
            row += 1
            yield row, record
    if not row:
        raise DataError("the file is empty" if kind != "dataset" else "the dataset is empty", path=path)


def _read_file(path: str, kind: str, select_columns: SelectColumns) -> Iterator[ArrowRecord]:
    from pyarrow import ArrowException

    name = "Parquet" if kind == "parquet" else "Arrow"
    with open_bytes(path) as file:
        try:
            yield from (_read_parquet if kind == "parquet" else _read_arrow)(file, select_columns)
        except (ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and is_url(path):
                raise  # the connection failed
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            raise DataError(f"the {name} file is damaged or is not one ({reason})", path=path) from None


def _read_parquet(file: BinaryIO, select_columns: SelectColumns) -> Iterator[ArrowRecord]:
    """Yield the rows of a Parquet file. One row group is in memory at a time."""
    from pyarrow import parquet

    table = parquet.ParquetFile(_make_seekable(file))
    names = list(table.schema_arrow.names)
    selected = [name for name in select_columns(names) if name in names]
    class_names = read_class_names(table.schema_arrow)
    for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=selected, use_threads=False):
        yield from _to_records(batch, class_names)


def _read_arrow(file: BinaryIO, select_columns: SelectColumns) -> Iterator[ArrowRecord]:
    """Yield the rows of an Arrow file. One record batch is in memory at a time."""
    from pyarrow import ipc

    is_file_format = file.peek(len(FILE_MAGIC)).startswith(FILE_MAGIC)  # type: ignore[attr-defined]
    reader = ipc.open_file(_make_seekable(file)) if is_file_format else ipc.open_stream(file)
    names = list(reader.schema.names)
    selected = [name for name in dict.fromkeys(select_columns(names)) if name in names]
    class_names = read_class_names(reader.schema)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file_format else iter(reader)
    for batch in batches:
        columns = batch.select(selected)
        for offset in range(0, batch.num_rows, BATCH_ROWS):
            yield from _to_records(columns.slice(offset, BATCH_ROWS), class_names)


def _make_seekable(file: BinaryIO) -> BinaryIO:
    """Return the file, or its content in memory if it is compressed in a way that allows no seeking."""
    return file if file.seekable() else BytesIO(file.read())


def _to_records(batch: Any, class_names: dict[str, list[str]]) -> Iterator[ArrowRecord]:
    for record in batch.to_pylist():
        for column, names in class_names.items():
            number = record.get(column)
            if isinstance(number, int) and 0 <= number < len(names):
                record[column] = names[number]
        yield record


def read_class_names(schema: Any) -> dict[str, list[str]]:
    """Return the names of the classes of each column that `datasets` has stored as numbers."""
    try:
        features = json.loads((schema.metadata or {})[FEATURES_KEY])["info"]["features"]
        named = {column: feature["names"] for column, feature in features.items() if "names" in feature}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {column: list(map(str, names)) for column, names in named.items() if isinstance(names, list)}
