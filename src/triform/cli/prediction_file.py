"""`predict --output`: the rows that were read, with the predictions added, as a table."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from triform.errors import ConfigError, DataError

if TYPE_CHECKING:
    from triform.config import TaskName
    from triform.data.inputs import Inputs
    from triform.tasks import Prediction

SUFFIXES = (".csv", ".tsv", ".jsonl")
PREDICTION_COLUMNS = {
    "classify": "predicted_label",
    "generate": "predicted_continuation",
    "translate": "predicted_translation",
}
TSV_REMEDY = "write a .csv or .jsonl instead"


def check_output(output: Path, input_: str) -> None:
    """Refuse, before anything is loaded, a file that could not be written or that is being read."""
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--output {output}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder; give a file")
    parent = next(folder for folder in output.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"--output {output}: cannot be written: {parent} is not a folder that you may write to")
    if output.exists() and input_ not in ("", "-") and Path(input_).exists() and output.samefile(input_):
        raise ConfigError(f"--output {output}: is the input file, which is not overwritten; choose another name")


def check_cells(output: Path, inputs: Inputs, task: TaskName, labels: Sequence[str]) -> None:
    """Refuse a .tsv, before anything is predicted, where a cell would not be one cell when read again."""
    if output.suffix.lower() != ".tsv":
        return
    if task == "generate":
        raise ConfigError(
            f"--output {output}: a continuation may have several lines, which a .tsv cannot hold; {TSV_REMEDY}"
        )
    for values in ([*inputs.names, *labels], *(row.values() for row in inputs.rows)):
        for value in values:
            _tsv_cell(output, _cell(value))


def write_predictions(output: Path, inputs: Inputs, predictions: Sequence[Prediction], task: TaskName) -> None:
    """Write the rows with a column for the prediction and, where there are any, for probabilities and notes."""
    from triform.io.files import replacing

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate, which only JSON can spell, becomes the escape that JSON has for it.
        with (
            replacing(output) as part,
            part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            if output.suffix.lower() == ".jsonl":
                _write_jsonl(file, inputs, predictions, PREDICTION_COLUMNS[task])
            else:
                _write_delimited(file, output, inputs, predictions, PREDICTION_COLUMNS[task])
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written: {error.strerror or error}") from None


def _write_jsonl(file: IO[str], inputs: Inputs, predictions: Sequence[Prediction], added: str) -> None:
    from triform.data.inputs import unique_names

    answer, shares, notes = unique_names([added, "probabilities", "notes"], taken=inputs.names)
    noted = any(each.notes for each in predictions)
    for row, each in zip(inputs.rows, predictions, strict=True):
        written = {**row, answer: each.output}
        written |= {} if each.probabilities is None else {shares: each.probabilities}
        written |= {notes: list(each.notes)} if noted else {}
        file.write(json.dumps(written, ensure_ascii=False) + "\n")


def _write_delimited(
    file: IO[str], output: Path, inputs: Inputs, predictions: Sequence[Prediction], added: str
) -> None:
    from triform.data.inputs import unique_names

    labels = list(predictions[0].probabilities or ())
    noted = any(each.notes for each in predictions)
    new = unique_names(
        [added, *(f"probability_{label}" for label in labels), *["notes"] * noted], taken=inputs.names
    )
    lines = [[*inputs.names, *new]]
    for row, each in zip(inputs.rows, predictions, strict=True):
        shares = [str((each.probabilities or {})[label]) for label in labels]
        kept = [_cell(row.get(name)) for name in inputs.names]
        lines.append([*kept, each.output, *shares, *["; ".join(each.notes)] * noted])
    if output.suffix.lower() == ".csv":
        file.writelines(",".join(map(_csv_cell, line)) + "\n" for line in lines)
    else:
        file.writelines("\t".join(_tsv_cell(output, cell) for cell in line) + "\n" for line in lines)


def _cell(value: object) -> str:
    """A value of a row as text: JSON where it is not text already."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _csv_cell(cell: str) -> str:
    """In quotes where it needs them; the csv module, asked for "\\n" as the line end, leaves "\\r" bare."""
    return '"' + cell.replace('"', '""') + '"' if any(mark in cell for mark in ',"\r\n') else cell


def _tsv_cell(output: Path, cell: str) -> str:
    if any(separator in cell for separator in "\t\n\r"):
        raise DataError(
            f"--output {output}: {cell[:40]!r} has a tab or several lines, which a .tsv cannot hold; {TSV_REMEDY}"
        )
    return cell
