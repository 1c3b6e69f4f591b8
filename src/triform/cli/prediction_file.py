"""`predict --output`: write the input rows and their predictions to a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from triform.errors import ConfigError, DataError

if TYPE_CHECKING:
    from triform.config import TaskName
    from triform.data.inputs import PredictionInputs
    from triform.tasks import Prediction
    from triform.tasks.prediction import Alternative

SUFFIXES = (".csv", ".tsv", ".jsonl")
PREDICTION_COLUMNS = {
    "classify": "predicted_label",
    "generate": "predicted_continuation",
    "translate": "predicted_translation",
}
TSV_REMEDY = "write a .csv or .jsonl file instead"


def validate_output_path(output: Path, input_: str) -> None:
    """Raise a ConfigError if the file cannot be written or is the input file. Called before anything is loaded."""
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--output {output}: the file name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            "or in a slash for a folder of parts"
        )
    if output.is_dir():
        raise ConfigError(
            f"--output {output}: this is a folder; give a file name, or end it with a slash for a folder of parts"
        )
    parent = next(folder for folder in output.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"--output {output}: cannot write the file: {parent} is not a writable folder")
    if output.exists() and input_ not in ("", "-") and Path(input_).exists() and output.samefile(input_):
        raise ConfigError(f"--output {output}: this is the input file; choose another name")


def validate_cells(output: Path, inputs: PredictionInputs, task: TaskName, labels: Sequence[str]) -> None:
    """Raise an error if a cell contains a tab or a line break, which a .tsv file cannot hold.

    Called before anything is predicted.
    """
    if output.suffix.lower() != ".tsv":
        return
    if task == "generate":
        raise ConfigError(
            f"--output {output}: generated text can have line breaks, which a .tsv cannot hold; {TSV_REMEDY}"
        )
    for values in ([*inputs.column_names, *labels], *(row.values() for row in inputs.rows)):
        for value in values:
            _format_tsv_cell(output, _format_cell(value))


def write_predictions(
    output: Path, inputs: PredictionInputs, predictions: Sequence[Prediction], task: TaskName
) -> None:
    """Write the rows with a column for the predictions, and columns for probabilities and notes if needed."""
    from triform.io.files import atomic_file

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(output) as temporary_path, open_output(temporary_path) as file:
            if output.suffix.lower() == ".jsonl":
                file.writelines(jsonl_lines(inputs.rows, predictions, inputs.column_names, task))
            else:
                _write_delimited(file, output, inputs, predictions, PREDICTION_COLUMNS[task])
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot write the file: {error.strerror or error}") from None


def open_output(path: Path) -> IO[str]:
    """Open a file for writing. JSON can spell a lone surrogate, which UTF-8 cannot encode; it stays an escape."""
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


def jsonl_lines(
    rows: Sequence[dict[str, object]],
    predictions: Sequence[Prediction],
    column_names: Sequence[str],
    task: TaskName,
) -> Iterator[str]:
    """Yield a JSON object for each row, with its prediction.

    An object does not depend on other rows, so that a large file can be written in parts.

    Args:
        rows: The rows of the input.
        predictions: One for each row.
        column_names: The names of all columns of the input, which new keys must not have.
        task: The task, which names the key of the prediction.
    """
    from triform.data.inputs import make_unique

    output_key, probabilities_key, alternatives_key, notes_key = make_unique(
        [PREDICTION_COLUMNS[task], "probabilities", "alternatives", "notes"], reserved=column_names
    )
    for row, prediction in zip(rows, predictions, strict=True):
        record = {**row, output_key: prediction.output}
        record |= {} if prediction.probabilities is None else {probabilities_key: prediction.probabilities}
        alternatives = [alternative_to_dict(alternative) for alternative in prediction.alternatives]
        record |= {alternatives_key: alternatives} if alternatives else {}
        record |= {notes_key: list(prediction.notes)} if prediction.notes else {}
        yield json.dumps(record, ensure_ascii=False, default=str) + "\n"


def _write_delimited(
    file: IO[str], output: Path, inputs: PredictionInputs, predictions: Sequence[Prediction], prediction_column: str
) -> None:
    from triform.data.inputs import make_unique

    labels = list(predictions[0].probabilities or ())
    alternative_columns = _alternative_columns(predictions)
    has_notes = any(prediction.notes for prediction in predictions)
    new_columns = make_unique(
        [
            prediction_column,
            *(f"probability_{label}" for label in labels),
            *alternative_columns,
            *["notes"] * has_notes,
        ],
        reserved=inputs.column_names,
    )
    lines = [[*inputs.column_names, *new_columns]]
    for row, prediction in zip(inputs.rows, predictions, strict=True):
        probabilities = [str((prediction.probabilities or {})[label]) for label in labels]
        input_cells = [_format_cell(row.get(name)) for name in inputs.column_names]
        pairs = [alternative_to_dict(alternative).values() for alternative in prediction.alternatives]
        alternatives = [str(value) for pair in pairs for value in pair]
        alternatives += [""] * (len(alternative_columns) - len(alternatives))  # beam search may have found fewer
        notes = ["; ".join(prediction.notes)] * has_notes
        lines.append([*input_cells, prediction.output, *probabilities, *alternatives, *notes])
    if output.suffix.lower() == ".csv":
        file.writelines(",".join(map(_format_csv_cell, line)) + "\n" for line in lines)
    else:
        file.writelines("\t".join(_format_tsv_cell(output, cell) for cell in line) + "\n" for line in lines)


def alternative_to_dict(alternative: Alternative) -> dict[str, object]:
    """Return the text of an alternative with its probability or its score."""
    return {name: value for name, value in asdict(alternative).items() if value is not None}


def _alternative_columns(predictions: Sequence[Prediction]) -> list[str]:
    """Return two column names for each rank: the text, and its probability or score."""
    alternatives = max((prediction.alternatives for prediction in predictions), key=len)
    value_name = "score" if alternatives and alternatives[0].probability is None else "probability"
    ranks = range(1, len(alternatives) + 1)
    return [name for rank in ranks for name in (f"top_{rank}", f"top_{rank}_{value_name}")]


def _format_cell(value: object) -> str:
    """Return a value of a row as text; values that are not text become JSON."""
    return (
        value
        if isinstance(value, str)
        else ""
        if value is None
        else json.dumps(value, ensure_ascii=False, default=str)
    )


def _format_csv_cell(cell: str) -> str:
    """Quote a cell if necessary. The csv module does not quote "\\r" if lines end in "\\n"."""
    return '"' + cell.replace('"', '""') + '"' if any(character in cell for character in ',"\r\n') else cell


def _format_tsv_cell(output: Path, cell: str) -> str:
    if any(separator in cell for separator in "\t\n\r"):
        raise DataError(
            f"--output {output}: {cell[:40]!r} has a tab or a line break, which a .tsv cannot hold; {TSV_REMEDY}"
        )
    return cell
