"""`triform audit`: find duplicates, leaks and conflicting labels in data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.completion import complete_run, complete_setting, complete_task
from triform.cli.evaluate import parse_named_sets
from triform.cli.help import DATA, argument, flag, option
from triform.cli.options import DeviceOption, JsonOption, NoVerifyOption, load_run, print_json, print_metrics_table
from triform.errors import ConfigError, DataError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, TaskName
    from triform.data.audit import AuditReport, AuditSet, LengthFunction
    from triform.evaluation.metrics import Metrics
    from triform.run import Run


AUDIT = "Audit"


@dataclass(frozen=True, kw_only=True)
class AuditInputs:
    """The sets to audit: their rows and their files, both by the name of the set."""

    task: TaskName
    rows: dict[str, AuditSet]
    files: dict[str, str]


TaskOption = Annotated[
    str,
    option(
        DATA,
        "TASK",
        "Task: classify, generate or translate. The default is guessed from the file.",
        complete=complete_task,
        name="--task",
    ),
]
SetOption = Annotated[
    list[str] | None,
    option(
        DATA,
        "NAME=VALUE",
        "Change a data.* setting or, with a run, a decode.* setting. Repeatable.",
        name="--set",
        complete=complete_setting,
    ),
]
RunOption = Annotated[
    Path | None,
    option(
        AUDIT,
        "RUN",
        "Also compute the metrics of this run on rows that are in the training data and on the others.",
        complete=complete_run,
        name="--run",
    ),
]
MaxLenOption = Annotated[
    int,
    option(AUDIT, "N", "Count the rows that are longer than N words, or N tokens with a run.", show_default=False),
]


def audit(
    run_or_file: Annotated[str, argument("RUN|FILE", "Run or training data to audit.", complete=complete_run)] = "",
    train: Annotated[str, option(DATA, "FILE", "Training data. The default is the data of the run.")] = "",
    valid: Annotated[str, option(DATA, "FILE", "Validation data; for translate also SOURCE,TARGET.")] = "",
    test: Annotated[list[str] | None, option(DATA, "[NAME=]FILE", "Test data. Repeatable.")] = None,
    task: TaskOption = "",
    set_: SetOption = None,
    run: RunOption = None,
    max_len: MaxLenOption = 0,
    strict: Annotated[bool, flag(AUDIT, "--strict", "Exit with code 1 if there are leaks or conflicts.")] = False,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    json_: JsonOption = False,
) -> None:
    """Find duplicates, leaks and conflicting labels in your data.

    A leak is a row of the validation or test data that is also in the training data. The audit also counts near
    duplicates, empty rows and rows that are too long.

    Examples:
        triform audit reviews.csv --test test.csv
        triform audit runs/reviews --test test.csv
    """
    from triform.config.settings import parse_assignments

    train, run = _resolve_positional(run_or_file, train, run)
    settings = parse_assignments(set_ or [])
    decode = {name.removeprefix("decode."): value for name, value in settings.items() if name.startswith("decode.")}
    for name in settings:
        if not name.startswith(("data.", "decode.")) or (name.startswith("decode.") and not run):
            raise ConfigError(f"--set {name}: audit uses only data.* settings and, with a run, decode.* settings")
    if max_len < 0:
        raise ConfigError(f"--max-len {max_len}: must be at least 1")
    if not train and not run:
        raise ConfigError("there is nothing to audit; give a training file or a run folder")
    loaded_run = load_run(run, device=device, no_verify=no_verify) if run else None
    config = _build_config(
        loaded_run, task, train, {name: settings[name] for name in settings if name.startswith("data.")}
    )
    inputs = _read_inputs(config, train, valid, test or [], loaded_run)

    from triform.data.audit import audit_sets
    from triform.reporting.audit_report import print_report, report_to_dict

    limit = max_len or (config.data.max_len if loaded_run and config.task != "generate" else 0)
    report = audit_sets(
        inputs.rows, max_len=limit, lengths=_build_token_counter(loaded_run) if loaded_run else None
    )
    metrics = _evaluate_subsets(loaded_run, report, inputs, decode) if loaded_run else {}
    if json_:
        print_json(report_to_dict(report, inputs.task, inputs.rows, metrics))
    else:
        print_report(report, inputs.task, limit, "tokens" if loaded_run else "words", has_metrics=bool(metrics))
        if loaded_run and metrics:
            echo(f"\nmetrics of {loaded_run.path} on rows that are in the training data (seen) and on other rows:")
            print_metrics_table(metrics)
    if strict and (report.leaks or report.n_conflicts):
        raise typer.Exit(1)


def _resolve_positional(run_or_file: str, train: str, run: Path | None) -> tuple[str, Path | None]:
    """Return `--train` and `--run`, one of which may be given as the positional argument."""
    from triform.data.folders import folder_kind

    if not run_or_file:
        return train, run
    is_file = run_or_file.startswith("builtin:") or "," in run_or_file  # translate: SOURCE,TARGET
    if not is_file and not Path(run_or_file).exists():
        raise DataError("no such file or run folder", path=run_or_file)
    is_run = not is_file and Path(run_or_file).is_dir() and folder_kind(run_or_file) is None
    option, existing_value = ("--run", run) if is_run else ("--train", train)
    if existing_value:
        raise ConfigError(f"{run_or_file} and {option} {existing_value} mean the same thing; use only one of them")
    return (train, Path(run_or_file)) if option == "--run" else (run_or_file, run)


def _build_config(loaded_run: Run | None, task: str, train: str, settings: dict[str, object]) -> Config:
    """Return how files are read: as in the run's training or, without a run, by the defaults."""
    from triform.config.settings import Settings, build_config, coerce_setting
    from triform.data.preview import guess_task

    data_settings: Settings = {name: coerce_setting(name, value) for name, value in settings.items()}
    if loaded_run is None:
        return build_config({"task": coerce_setting("task", task or guess_task(train)), **data_settings})
    if task and task != loaded_run.config.task:
        raise ConfigError(f"{loaded_run.path} is for {loaded_run.config.task}, not {task}; leave out --task")
    return build_config(data_settings, loaded_run.config)


def _read_inputs(config: Config, train: str, valid: str, tests: list[str], loaded_run: Run | None) -> AuditInputs:
    from triform.data.audit import read_audit_set

    test_files = (
        {"test": tests[0]} if len(tests) == 1 and "=" not in tests[0] else parse_named_sets(tests, "--test")
    )
    for name in ("train", "valid"):
        if name in test_files:
            raise ConfigError(f"--test {name}={test_files[name]}: the name {name!r} is taken; choose another name")
    if train or loaded_run is None:
        files = {"train": train, **({"valid": valid} if valid else {}), **test_files}
        return AuditInputs(
            task=config.task,
            files=files,
            rows={name: read_audit_set(config.task, file, config.data) for name, file in files.items()},
        )
    train_rows, valid_rows, files = _read_run_sets(config, loaded_run)
    rows = {"train": train_rows}
    if valid:
        files["valid"] = valid
        rows["valid"] = read_audit_set(config.task, valid, config.data)
    elif valid_rows is not None:
        rows["valid"] = valid_rows
    rows |= {name: read_audit_set(config.task, file, config.data) for name, file in test_files.items()}
    return AuditInputs(task=config.task, files={**files, **test_files}, rows=rows)


def _read_run_sets(config: Config, loaded_run: Run) -> tuple[AuditSet, AuditSet | None, dict[str, str]]:
    """Return the rows that a run was trained on, those held out for validation, and their files."""
    from triform.data.audit import read_audit_set
    from triform.tasks.splits import held_out_rows

    data = config.data
    train = data.train or f"{data.source},{data.target}"
    valid = data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")
    rows = read_audit_set(config.task, train, data)
    files = {"train": train, "valid": valid or train}
    if valid or not data.valid_fraction:
        return rows, read_audit_set(config.task, valid, data) if valid else None, files
    is_valid = held_out_rows(config, train, [rows.line_number(row) for row in range(len(rows.texts))])
    return rows.select([not is_valid_row for is_valid_row in is_valid]), rows.select(is_valid), files


def _build_token_counter(loaded_run: Run) -> LengthFunction:
    """Return a function that counts tokens as the run's model does."""
    task = loaded_run.task

    def count(side: str, texts: Sequence[str]) -> list[int]:
        is_target = side == "target"  # for translate, an end token is added to targets
        tokenizer = task.target_tokenizer if is_target else task.tokenizer
        return [len(tokens) + is_target for tokens in tokenizer.encode_batch(texts)]

    return count


def _evaluate_subsets(
    loaded_run: Run, report: AuditReport, inputs: AuditInputs, decode: Mapping[str, object]
) -> dict[str, Metrics]:
    """Return the metrics on all rows, on rows of the training data, and on the others, for each set."""
    metrics: dict[str, Metrics] = {}
    for overlap in report.overlaps:
        if overlap.within != "train" or overlap.side not in ("text", "source"):
            continue
        rows = inputs.rows[overlap.name]
        subsets = {"all": overlap.seen | True}
        if overlap.seen.any():
            subsets |= {"seen": overlap.seen, "unseen": ~overlap.seen}
        if overlap.near.any():
            subsets["unseen, no near duplicates"] = ~(overlap.seen | overlap.near)
        file = inputs.files[overlap.name]
        for name, selected in subsets.items():
            if not selected.any():
                continue
            # Otherwise these rows are the part that was held out of the training file.
            is_full_set = name == "all" and file != inputs.files["train"]
            lines = None if is_full_set else {rows.line_number(int(row)) for row in selected.nonzero()[0]}
            try:
                metrics[f"{overlap.name}: {name}"] = loaded_run.evaluate_with_notices(file, decode, lines)[0]
            except DataError as error:
                if name == "all":
                    raise
                echo(f"note: {overlap.name}: {name}: {error}", err=True)  # too few rows to evaluate
    return metrics
