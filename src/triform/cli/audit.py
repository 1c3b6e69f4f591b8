"""`triform audit`: what data does to a score before any model is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.evaluate import named_sets
from triform.cli.options import Device, Json, NoVerify, Set, open_run, print_json, print_scores
from triform.errors import ConfigError, DataError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.config import Config, TaskName
    from triform.data.audit import Audit, Lengths, Rows
    from triform.metrics import Scores
    from triform.run import Run


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is looked at: the rows of each set, by its name, and the file they came from."""

    task: TaskName
    rows: dict[str, Rows]
    files: dict[str, str]


def audit(
    subject: Annotated[str, typer.Argument(metavar="RUN|FILE", help="The run or training file to look at.")] = "",
    train: Annotated[str, typer.Option(metavar="F", help="The training file; the default is the run's.")] = "",
    valid: Annotated[
        str, typer.Option(metavar="F", help="The validation file; for translate also SOURCE,TARGET.")
    ] = "",
    test: Annotated[list[str] | None, typer.Option(metavar="[NAME=]F", help="A test file. Repeatable.")] = None,
    task: Annotated[str, typer.Option(help="The task; the default is guessed from the file.")] = "",
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Evaluate this run on seen and on unseen rows.")
    ] = None,
    max_len: Annotated[
        int,
        typer.Option(metavar="N", show_default=False, help="Count rows of more than N words (tokens of the run)."),
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if there is a leak or a conflict.")
    ] = False,
    set_: Set = None,
    json_: Json = False,
    device: Device = "auto",
    no_verify: NoVerify = False,
) -> None:
    """Find repeats, near repeats, leaks between sets, contradicting labels, empty and long rows."""
    from triform.settings import parse_assignments

    train, run = _by_position(subject, train, run)
    settings = parse_assignments(set_ or [])
    decode = {name.removeprefix("decode."): value for name, value in settings.items() if name.startswith("decode.")}
    for name in settings:
        if not name.startswith(("data.", "decode.")) or (name.startswith("decode.") and not run):
            raise ConfigError(f"--set {name}: only data.* can be set here, and decode.* with --run")
    if max_len < 0:
        raise ConfigError(f"--max-len {max_len} is no length: it must be at least 1")
    if not train and not run:
        raise ConfigError("say what to look at: a training file or a run folder (or --train FILE, --run RUN)")
    opened = open_run(run, device=device, no_verify=no_verify) if run else None
    config = _config(opened, task, train, {name: settings[name] for name in settings if name.startswith("data.")})
    asked = _asked(config, train, valid, test or [], opened)

    from triform.cli.audited import as_json, show
    from triform.data.audit import audit as look

    limit = max_len or (config.data.max_len if opened and config.task != "generate" else 0)
    found = look(asked.rows, max_len=limit, lengths=_token_counts(opened) if opened else None)
    scores = _scores(opened, found, asked, decode) if opened else {}
    if json_:
        print_json(as_json(found, asked.task, asked.rows, scores))
    else:
        show(found, asked.task, limit, "tokens" if opened else "words", scored=bool(scores))
        if opened and scores:
            echo(f"\nscores of {opened.path}, rows seen in training and others apart:")
            print_scores(scores)
    if strict and (found.leaks or found.conflicts):
        raise typer.Exit(1)


def _by_position(subject: str, train: str, run: Path | None) -> tuple[str, Path | None]:
    """`--train` and `--run`, the one that is left out filled with what was given by position."""
    if not subject:
        return train, run
    is_file = subject.startswith("builtin:") or "," in subject  # translate: SOURCE,TARGET
    if not is_file and not Path(subject).exists():
        raise DataError("no such file or run folder", path=subject)
    option, other = ("--run", run) if Path(subject).is_dir() else ("--train", train)
    if other:
        raise ConfigError(f"{subject} and {option} {other} are given for one thing: give one of them")
    return (train, Path(subject)) if option == "--run" else (subject, run)


def _config(opened: Run | None, task: str, train: str, settings: dict[str, object]) -> Config:
    """How files are read: as the run was told to or, without one, as `train` would."""
    from triform.settings import Settings, build, typed

    layout: Settings = {name: typed(name, value) for name, value in settings.items()}
    if opened is None:
        return build({"task": typed("task", task or _guessed(train)), **layout})
    if task and task != opened.config.task:
        raise ConfigError(f"{opened.path} is for {opened.config.task}, not {task}: leave --task out")
    return build(layout, opened.config)


def _guessed(train: str) -> TaskName:
    from triform.data import sets
    from triform.data.files import BUILTIN, kind_of

    if train.startswith(BUILTIN):
        names: tuple[TaskName, ...] = ("classify", "generate", "translate")
        return next(name for name in names if sets.is_for(train, name))
    if "," in train and not Path(train).exists():
        return "translate"
    return "generate" if kind_of(train) == "txt" else "classify"


def _asked(config: Config, train: str, valid: str, tests: list[str], opened: Run | None) -> Asked:
    from triform.data.audit import read_set

    named = {"test": tests[0]} if len(tests) == 1 and "=" not in tests[0] else named_sets(tests, "--test")
    for name in ("train", "valid"):
        if name in named:
            raise ConfigError(f"--test {name}={named[name]}: {name!r} is the name of another set; choose another")
    if train or opened is None:
        files = {"train": train, **({"valid": valid} if valid else {}), **named}
        return Asked(
            task=config.task,
            files=files,
            rows={name: read_set(config.task, file, config.data) for name, file in files.items()},
        )
    learned, held, files = _of_run(config, opened)
    rows = {"train": learned}
    if valid:
        files["valid"] = valid
        rows["valid"] = read_set(config.task, valid, config.data)
    elif held is not None:
        rows["valid"] = held
    rows |= {name: read_set(config.task, file, config.data) for name, file in named.items()}
    return Asked(task=config.task, files={**files, **named}, rows=rows)


def _of_run(config: Config, opened: Run) -> tuple[Rows, Rows | None, dict[str, str]]:
    """The rows that a run learned from, those it was judged by, and their files."""
    from triform.data.audit import read_set

    data = config.data
    train = data.train or f"{data.source},{data.target}"
    valid = data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")
    rows = read_set(config.task, train, data)
    files = {"train": train, "valid": valid or train}
    if valid or not data.valid_fraction:
        return rows, read_set(config.task, valid, data) if valid else None, files
    held = _held(config, rows, train)
    return rows.some([not out for out in held]), rows.some(held), files


def _held(config: Config, rows: Rows, train: str) -> list[bool]:
    """For each row, whether the run kept it for validation."""
    from itertools import islice

    from triform.data.readers import is_running_text, read_lines
    from triform.tasks.generate import training_part
    from triform.tasks.task import held_out

    if config.task != "generate":
        return list(islice(held_out(config.data.valid_fraction), len(rows.texts)))
    stop = training_part(config) or 0
    if not is_running_text(train):
        return [place >= stop for place in range(len(rows.texts))]
    at, ends = 0, {}
    for line, text in read_lines(train):
        at += len(text) + 1
        ends[line] = at
    return [ends[line] - 1 > stop for line in rows.lines]  # a line that is cut counts as held out


def _token_counts(opened: Run) -> Lengths:
    """Lengths as the run's model counts them."""
    from triform.tasks.classify import Classify
    from triform.tasks.generate import Generate
    from triform.tasks.translate import Translate

    def count(side: str, texts: Sequence[str]) -> list[int]:
        task = opened.task
        if isinstance(task, Translate):
            tokenizer, more = (task.target, 1) if side == "target" else (task.source, 0)  # targets end with a token
        else:
            assert isinstance(task, Classify | Generate)
            tokenizer, more = task.tokenizer, 0
        return [len(tokens) + more for tokens in tokenizer.encode_batch(texts)]

    return count


def _scores(opened: Run, found: Audit, asked: Asked, decode: Mapping[str, object]) -> dict[str, Scores]:
    """Of every set that shares rows with the training set: all rows, those seen, the others."""
    scores: dict[str, Scores] = {}
    for overlap in found.overlaps:
        if overlap.within != "train" or overlap.side not in ("text", "source"):
            continue
        rows = asked.rows[overlap.name]
        parts = {"all": overlap.seen | True}
        if overlap.seen.any():
            parts |= {"seen": overlap.seen, "unseen": ~overlap.seen}
        if overlap.near.any():
            parts["unseen, none near"] = ~(overlap.seen | overlap.near)
        file = asked.files[overlap.name]
        for name, chosen in parts.items():
            if not chosen.any():
                continue
            whole = name == "all" and file != asked.files["train"]  # else it is what was held out of that file
            lines = None if whole else {rows.line(int(row)) for row in chosen.nonzero()[0]}
            try:
                scores[f"{overlap.name}: {name}"] = opened.evaluate_with_notices(file, decode, lines)[0]
            except DataError as error:
                if name == "all":
                    raise
                echo(f"note: {overlap.name}: {name}: {error}", err=True)  # too little to be scored
    return scores
