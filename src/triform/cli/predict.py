"""`triform predict`: classify, continue or translate texts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.help import DATA, GENERATION, argument, flag, option
from triform.cli.options import (
    AdapterOption,
    DecodeSetOption,
    DeviceOption,
    EnsembleArgument,
    JsonOption,
    KeepOption,
    NoVerifyOption,
    PrecisionOption,
    QuietOption,
    load_shared_run,
    parse_decode_settings,
    parse_keep,
    print_json,
    print_precision_note,
)
from triform.cli.prediction_file import alternative_to_dict, validate_cells, validate_output_path, write_predictions
from triform.cli.prediction_folder import (
    PART_ROWS,
    FolderJob,
    is_folder_output,
    predict_to_folder,
    validate_output_folder,
)
from triform.cli.shorthands import TABLE_SETTINGS, with_shorthands
from triform.errors import ConfigError, DataError
from triform.formatting import echo, print_table

if TYPE_CHECKING:
    from triform.config import Config, DataConfig, TaskName
    from triform.config.settings import Settings
    from triform.data.inputs import PredictionInputs
    from triform.run import Run
    from triform.tasks import Prediction

MAX_SHOWN_LABELS = 5
ALTERNATIVE_HEADINGS = {"classify": "label", "generate": "next token", "translate": "translation"}


InputOption = Annotated[
    str,
    option(
        DATA,
        "FILE",
        "Read texts from a table (.csv, .tsv, .jsonl, .parquet, .arrow), from a file with one text per line, also "
        "compressed (.gz, .zst), or from a folder of text files. - is standard input.",
        name="--input",
    ),
]
OutputOption = Annotated[
    str,
    option(
        DATA,
        "FILE",
        "Write the input rows with their predictions to a .csv, .tsv or .jsonl file. A folder, such as out/, gets "
        "numbered .jsonl parts; the same command continues an interrupted job.",
        name="--output",
    ),
]
PartRowsOption = Annotated[
    int,
    option(
        DATA,
        "N",
        "Number of rows that are predicted at a time, and that a part of an output folder has.",
        minimum=1,
    ),
]
RepairOption = Annotated[bool, flag(DATA, "--repair", "Predict the damaged parts of an output folder again.")]
TopOption = Annotated[
    int,
    option(
        GENERATION,
        "N",
        "Also show the N most probable labels, the N most probable next tokens after the prompt, or the N best "
        "translations of beam search.",
        minimum=0,
        show_default=False,
    ),
]
SeedOption = Annotated[
    int | None, option(GENERATION, "N", "Random seed for sampling. The default is that of the run.")
]


@with_shorthands("--text-column", "--temperature", "--top-k", "--top-p", "--beam-size", "--max-new-tokens", "--mix")
def predict(
    run: EnsembleArgument,
    texts: Annotated[list[str] | None, argument("TEXT", "Texts to predict.")] = None,
    input_: InputOption = "",
    output: OutputOption = "",
    part_rows: PartRowsOption = PART_ROWS,
    repair: RepairOption = False,
    keep: KeepOption = "",
    set_: DecodeSetOption = None,
    top: TopOption = 0,
    seed: SeedOption = None,
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Classify, continue or translate text with a trained model.

    Give the texts as arguments, as a file with --input, or both. The predictions go to standard output, or with
    --output to a file or to a folder of numbered parts.

    Examples:
        triform predict runs/reviews "A wonderful film." "Too long and too loud."
        triform predict runs/reviews --input new.csv --output predictions.csv
        triform predict runs/reviews --input large.jsonl.gz --output predictions/
        triform predict runs/story "Once upon a time" --temperature 0.7
        triform predict runs/story "Once upon a time" --max-new-tokens 1 --top 10
    """
    _validate_files(texts or [], input_, output, repair=repair)
    decode, table_settings = _split_settings(set_)
    settings = {**decode, "top": top, "keep": parse_keep(keep), "seed": seed}
    options = {"device": device, "precision": precision, "adapter": adapter}
    with load_shared_run(run, **options, no_verify=no_verify) as loaded_run:
        _fit_mixture(loaded_run, decode, output, show=not quiet)
        if is_folder_output(output):
            _print_unused_settings(loaded_run, decode)
            job = FolderJob(
                run=loaded_run, input=input_, output=Path(output), part_rows=part_rows, settings=settings,
                show=not quiet, table_config=_table_config(loaded_run.config, table_settings),
            )  # fmt: skip
            _predict_to_folder(job, repair=repair, as_json=json_)
            return
        inputs = collect_inputs(texts or [], input_, loaded_run.config, table_settings)
        if inputs.description:
            echo(inputs.description, err=True)
        if output:
            validate_cells(Path(output), inputs, loaded_run.config.task, loaded_run.config.data.labels)
        _print_unused_settings(loaded_run, decode)
        predictions = _predict_in_parts(loaded_run, inputs.texts, part_rows, settings)
        if loaded_run.world.is_main:
            if output:
                write_predictions(Path(output), inputs, predictions, loaded_run.config.task)
            _print_predictions(loaded_run, predictions, output, top, as_json=json_)


def _fit_mixture(run: Run, decode: dict[str, Any], output: str, *, show: bool) -> None:
    """With `decode.mix`, learn the weights of the mixture before anything is predicted, and show them."""
    from triform.config.merging import override_decode

    mix = override_decode(run.config.decode, **decode).mix
    if mix and is_folder_output(output):
        raise ConfigError("decode.mix cannot be combined with an output folder; write a file, such as texts.jsonl")
    mixture = run.mixtures.find(mix) if mix else None
    for note in (*mixture.notices, mixture.describe()) if mixture and show else ():
        echo(f"note: {note}", err=True)


def _validate_files(texts: Sequence[str], input_: str, output: str, *, repair: bool) -> None:
    """Refuse options that do not fit together, and outputs that cannot be written, before anything is loaded."""
    if not texts and not input_:
        raise DataError("there is nothing to predict; give TEXT, --input FILE, or --input - for standard input")
    if is_folder_output(output):
        validate_output_folder(output, texts, input_)
    elif repair:
        raise ConfigError("--repair needs an output folder, such as --output predictions/")
    elif output:
        validate_output_path(Path(output), input_)


def _predict_in_parts(
    run: Run, texts: Sequence[str], part_rows: int, settings: Mapping[str, Any]
) -> list[Prediction]:
    """Predict as many texts at a time as a part of an output folder has, so that both give the same predictions."""
    predictions: list[Prediction] = []
    for start in range(0, len(texts), part_rows):
        part = texts[start : start + part_rows]
        predictions += run.predict(part, rows=range(start, start + len(part)), **settings)
    return predictions


def _print_predictions(
    run: Run, predictions: Sequence[Prediction], output: str, top: int, *, as_json: bool
) -> None:
    print_precision_note(run)
    for line in summarize_notes(predictions):
        echo(line, err=True)
    if as_json:
        extra = {} if run.precision == "fp32" else {"precision": run.precision}
        print_json([{**prediction_to_dict(prediction), **extra} for prediction in predictions])
    elif output:
        echo(f"{len(predictions)} prediction{'s' * (len(predictions) != 1)} written to {output}")
    else:
        for prediction in predictions:
            echo(prediction.input * (run.config.task == "generate") + format_prediction(prediction))
            if top:
                print_alternatives(prediction, run.config.task)


def _predict_to_folder(job: FolderJob, *, repair: bool, as_json: bool) -> None:
    summary = predict_to_folder(job, repair=repair)
    print_precision_note(job.run)
    if summary["rows_with_notes"] and not as_json:
        echo(f"note: {summary['rows_with_notes']:,} of {summary['rows']:,} rows have the key notes", err=True)
    if as_json:
        print_json(summary)
    else:
        echo(f"{summary['rows']:,} predictions written to {job.output} in {summary['parts']:,} parts")


def _print_unused_settings(run: Run, decode: dict[str, object]) -> None:
    """Print a note about decoding settings that the task, the strategy or the model does not use."""
    from triform.config.merging import IMPLIED_STRATEGY, override_decode

    config = run.config
    if decode and config.task == "classify":
        names = ", ".join(f"decode.{name}" for name in decode)
        echo(f"note: a classifier generates no text, so these settings have no effect: {names}", err=True)
        return
    strategy = override_decode(config.decode, **decode).strategy
    unused_names = [f"decode.{name}" for name in decode if IMPLIED_STRATEGY.get(name, strategy) != strategy]
    if unused_names and strategy != "auto":
        echo(f"note: decode.strategy={strategy} does not use {', '.join(unused_names)}", err=True)


def _split_settings(assignments: list[str] | None) -> tuple[dict[str, Any], Settings]:
    """Return the decoding settings of `--set` as keyword arguments, and its settings for reading a table."""
    from triform.config.settings import parse_assignments

    table_settings = {
        name: value for name, value in parse_assignments(assignments or []).items() if name in TABLE_SETTINGS
    }
    decode_assignments = [
        assignment for assignment in assignments or [] if assignment.partition("=")[0].strip() not in TABLE_SETTINGS
    ]
    return parse_decode_settings(decode_assignments), table_settings


def collect_inputs(texts: Sequence[str], input_: str, config: Config, settings: Settings) -> PredictionInputs:
    """Return the texts of the arguments, followed by those of the file, with their rows."""
    from triform.data.inputs import inputs_from_texts, read_inputs
    from triform.world import current_world

    argument_inputs = inputs_from_texts(texts, config.task)
    if not input_:
        return argument_inputs
    if input_ == "-":
        if current_world().size > 1:
            raise ConfigError("several processes cannot share standard input; save it in a file for --input")
        file_inputs = inputs_from_texts(_read_standard_input(), config.task)
    else:
        file_inputs = read_inputs(input_, config.task, _table_config(config, settings))
    if not file_inputs.texts and not texts:
        raise DataError("standard input is empty; write one text per line to it, or give TEXT or --input FILE")
    rows: list[dict[str, object]] = [{file_inputs.column: text} for text in texts]
    return replace(file_inputs, texts=[*argument_inputs.texts, *file_inputs.texts], rows=[*rows, *file_inputs.rows])


def _table_config(config: Config, settings: Settings) -> DataConfig:
    """Return how to read a table: as in training, changed by the settings of this call.

    For translate, `--text-column` is the source column.
    """
    from triform.config.settings import build_config

    if config.task == "translate" and "data.text_column" in settings:
        settings = {"data.source_column": settings["data.text_column"], **settings}
    return build_config(settings, config).data


def prediction_to_dict(prediction: Prediction) -> dict[str, object]:
    """Return the fields of a prediction that are set, for JSON output."""
    fields = {name: value for name, value in asdict(prediction).items() if value not in (None, False, ())}
    if prediction.alternatives:
        fields["alternatives"] = [alternative_to_dict(alternative) for alternative in prediction.alternatives]
    return fields


def format_prediction(prediction: Prediction) -> str:
    """Return the predicted text, or the predicted label with the probabilities of the most likely labels."""
    if prediction.probabilities is None:
        return prediction.output
    probabilities = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    labels = [f"{label} {100 * probability:.1f} %" for label, probability in probabilities[:MAX_SHOWN_LABELS]]
    remainder = (
        [f"and {len(probabilities) - MAX_SHOWN_LABELS} more"] if len(probabilities) > MAX_SHOWN_LABELS else []
    )
    return f"{prediction.output}\t" + "  ".join([*labels, *remainder])


def print_alternatives(prediction: Prediction, task: TaskName) -> None:
    """Print a table of the alternatives of a prediction: text with probability or score. Tokens are quoted."""
    heading = ALTERNATIVE_HEADINGS[task] if prediction.probabilities or task != "classify" else "token"
    rows = [["", heading, "score" if task == "translate" else "probability"]]
    for rank, alternative in enumerate(prediction.alternatives, 1):
        text = json.dumps(alternative.text, ensure_ascii=False) if task == "generate" else alternative.text
        if alternative.probability is None:
            value = f"{alternative.score:.4f}"
        else:
            value = f"{100 * alternative.probability:.2f} %"
        rows.append([str(rank), text, value])
    print_table(rows, align="rlr")


def summarize_notes(predictions: Sequence[Prediction]) -> list[str]:
    """Return one line for each kind of note, with the number of texts that have it.

    Notes that differ only in their numbers, or in the words that they list, are of one kind.
    """
    notes_by_kind: dict[str, list[str]] = {}
    for prediction in predictions:
        for note in prediction.notes:
            kind = re.sub(r"\d+", "0", re.split("[:;]", note)[0])
            notes_by_kind.setdefault(kind, []).append(note)
    lines = []
    for notes in notes_by_kind.values():
        example = notes[0] if len(set(notes)) == 1 else f"for example, {notes[0]}"
        count = f"{len(notes)} of {len(predictions)} texts: " if len(predictions) > 1 else ""
        lines.append(f"note: {count}{example}")
    return lines


def _read_standard_input() -> Iterator[str]:
    from triform.data.files import iter_byte_lines

    for line_number, line in iter_byte_lines(sys.stdin.buffer, "standard input"):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError("is not UTF-8", path="standard input", line=line_number) from None


def read_text_lines(name: str) -> list[str]:
    """Return the lines of a file, or of standard input if the name is `-`."""
    if not name:
        return []
    if name == "-":
        return list(_read_standard_input())
    from triform.data.readers import read_lines

    return [text for _, text in read_lines(name)]
