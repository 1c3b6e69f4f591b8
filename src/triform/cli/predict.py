"""`triform predict`: a label, a continuation or a translation."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import (
    Adapter,
    Device,
    Json,
    NoVerify,
    Precision,
    RunPath,
    Set,
    decode_settings,
    open_run,
    print_json,
    say_precision,
)
from triform.cli.prediction_file import check_cells, check_output, write_predictions
from triform.cli.shorthands import with_shorthands
from triform.errors import DataError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, DataConfig
    from triform.data.inputs import Inputs
    from triform.settings import Settings
    from triform.tasks import Prediction

SHOWN_LABELS = 5
TABLE_SETTINGS = ("data.text_column", "data.source_column", "data.header")  # how a table is read, beside decode.*


@with_shorthands("--text-column", "--temperature", "--top-k", "--top-p", "--beam-size", "--max-new-tokens")
def predict(
    run: RunPath,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="The texts to predict.")] = None,
    input_: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="F",
            help="Read texts from this file: a table (.csv, .tsv, .jsonl), or one text per line. "
            "Write - for standard input.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Write the rows with their predictions to this file: .csv, .tsv or .jsonl."),
    ] = None,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Random seed for sampling; the default is the run's.")] = None,
    json_: Json = False,
    device: Device = "auto",
    precision: Precision = "auto",
    adapter: Adapter = "",
    no_verify: NoVerify = False,
) -> None:
    """Predict with a trained run: text in, answer out."""
    if not texts and not input_:
        raise DataError("nothing to predict: give TEXT, --input FILE, or --input - for standard input")
    if output is not None:
        check_output(output, input_)
    decode, layout = _split_settings(set_)
    opened = open_run(run, device=device, precision=precision, adapter=adapter, no_verify=no_verify)
    inputs = gather(texts or [], input_, opened.config, layout)
    if inputs.description:
        echo(inputs.description, err=True)
    if output is not None:
        check_cells(output, inputs, opened.config.task, opened.config.data.labels)
    if decode and opened.config.task == "classify":
        names = ", ".join(f"decode.{name}" for name in decode)
        echo(f"note: a classifier generates no text, so these settings have no effect: {names}", err=True)
    predictions = opened.predict(inputs.texts, seed=seed, **decode)
    say_precision(opened)
    for line in summarize_notes(predictions):
        echo(line, err=True)
    if output is not None:
        write_predictions(output, inputs, predictions, opened.config.task)
    if json_:
        extra = {} if opened.precision == "fp32" else {"precision": opened.precision}
        print_json([{**as_json(each), **extra} for each in predictions])
    elif output is not None:
        echo(f"{len(predictions)} prediction{'s' * (len(predictions) != 1)} written to {output}")
    else:
        for each in predictions:
            echo(each.input * (opened.config.task == "generate") + shown(each))


def _split_settings(assignments: list[str] | None) -> tuple[dict[str, object], Settings]:
    """`--set` as decode settings by keyword, and as settings that say how a table is read."""
    from triform.settings import parse_assignments

    layout = {name: value for name, value in parse_assignments(assignments or []).items() if name in TABLE_SETTINGS}
    others = [each for each in assignments or [] if each.partition("=")[0].strip() not in TABLE_SETTINGS]
    return decode_settings(others), layout


def gather(texts: Sequence[str], input_: str, config: Config, settings: Settings) -> Inputs:
    """The texts of the arguments, then those of the file, with their rows."""
    from triform.data.inputs import from_texts, read_inputs

    typed = from_texts(texts, config.task)
    if not input_:
        return typed
    if input_ == "-":
        read = from_texts(_standard_input(), config.task)
    else:
        read = read_inputs(input_, config.task, _layout(config, settings))
    if not read.texts and not texts:
        raise DataError("standard input is empty: give TEXT, --input FILE, or --input - with a text per line")
    rows: list[dict[str, object]] = [{read.column: text} for text in texts]
    return replace(read, texts=[*typed.texts, *read.texts], rows=[*rows, *read.rows])


def _layout(config: Config, settings: Settings) -> DataConfig:
    """How the run reads tables, with the settings of this call; --text-column is the source for translate."""
    from triform.settings import build

    if config.task == "translate" and "data.text_column" in settings:
        settings = {"data.source_column": settings["data.text_column"], **settings}
    return build(settings, config).data


def as_json(prediction: Prediction) -> dict[str, object]:
    return {name: value for name, value in asdict(prediction).items() if value not in (None, False, ())}


def shown(prediction: Prediction) -> str:
    """The answer; a label with the probabilities of the likeliest labels."""
    if prediction.probabilities is None:
        return prediction.output
    shares = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    listed = [f"{label} {100 * share:.1f} %" for label, share in shares[:SHOWN_LABELS]]
    more = [f"and {len(shares) - SHOWN_LABELS} more"] if len(shares) > SHOWN_LABELS else []
    return f"{prediction.output}\t" + "  ".join([*listed, *more])


def summarize_notes(predictions: Sequence[Prediction]) -> list[str]:
    """One line per kind of note with the number of texts it is about; notes alike but for numbers are one kind."""
    kinds: dict[str, list[str]] = {}
    for each in predictions:
        for note in each.notes:
            kinds.setdefault(re.sub(r"\d+", "0", note), []).append(note)
    lines = []
    for notes in kinds.values():
        example = notes[0] if len(set(notes)) == 1 else f"for example, {notes[0]}"
        count = f"{len(notes)} of {len(predictions)} texts: " if len(predictions) > 1 else ""
        lines.append(f"note: {count}{example}")
    return lines


def _standard_input() -> Iterator[str]:
    from triform.data.files import limited_lines

    for number, line in limited_lines(sys.stdin.buffer, "standard input"):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError("is not UTF-8", path="standard input", line=number) from None


def lines_of(name: str) -> list[str]:
    """The lines of a file, or of standard input where it is called -."""
    if not name:
        return []
    if name == "-":
        return list(_standard_input())
    from triform.data.readers import read_lines

    return [text for _, text in read_lines(name)]
