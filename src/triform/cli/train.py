"""`triform train`: from a file to a run folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import Device, Json, NoVerify, Set, print_json
from triform.cli.shorthands import check_agreement, with_shorthands
from triform.formatting import echo, format_mean, format_metric, format_range

if TYPE_CHECKING:
    from triform.seeds import Seeds
    from triform.settings import Settings

OPTION_SETTINGS = {
    "--data": "data.train",
    "--source": "data.source",
    "--target": "data.target",
    "--valid": "data.valid",
    "--from": "train.base",
    "--embeddings": "train.embeddings",
    "--seed": "seed",
}


@with_shorthands("--epochs", "--max-steps", "--lr", "--batch-size", "--text-column", "--label-column")
def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task: classify, generate or translate.")],
    data: Annotated[str, typer.Option(help="The training file. Without one, a built-in data set is used.")] = "",
    source: Annotated[str, typer.Option(help="For translate: a file with one sentence per line.")] = "",
    target: Annotated[str, typer.Option(help="For translate: a file with their translations, line by line.")] = "",
    valid: Annotated[str, typer.Option(help="The validation file; for translate also SOURCE,TARGET.")] = "",
    preset: Annotated[str, typer.Option(help="Start from named settings, for example small or speeches-lm.")] = "",
    config: Annotated[Path | None, typer.Option(help="Read settings from this TOML file.")] = None,
    set_: Set = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="RUN", help="Start from this run or this published model's folder.")
    ] = "",
    embeddings: Annotated[
        str, typer.Option(metavar="FILE", help="Start from these word vectors; see `triform vectors`.")
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="RUN", help="The run folder to write; the default is runs/TASK-DATA.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out if there is one.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed for initialisation, shuffling and dropout.")] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Train N models in RUN/seed-*, with seeds counted from --seed.")
    ] = None,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Train a model on your text and leave a run folder.

    Settings left open are chosen from the size of the data. Ctrl-C saves and says how to go on.
    """
    from triform.launch import Options
    from triform.launch import train as launch
    from triform.seeds import train_seeds

    files = {"--data": data, "--source": source, "--target": target, "--valid": valid}
    asked = _settings(task, set_, files | {"--from": from_, "--embeddings": embeddings, "--seed": seed})
    options = Options(out=out, resume=resume, overwrite=overwrite, device=device, quiet=quiet, verify=not no_verify)
    if seeds is not None:
        made = train_seeds(task, seeds, preset=preset, config=config, options=options, **asked)  # type: ignore[arg-type]
        show_seeds(made, as_json=json_)
        return
    run = launch(task, preset=preset, config=config, options=options, **asked)  # type: ignore[arg-type]
    if json_:
        print_json({"run": str(run.path), "task": run.config.task, **run.progress()})
        return
    echo(f"run folder: {run.path}")
    echo(f"report:     {run.path / 'report.html'}")
    example = {"classify": "some text", "generate": "Once upon", "translate": "a sentence"}[run.config.task]
    echo(f'try:        triform predict {shlex.quote(str(run.path))} "{example}"')


def _settings(task: str, assignments: list[str] | None, options: Mapping[str, str | int | None]) -> Settings:
    """The settings of `--set` and of the options that stand for one; "" and None are options left out."""
    from triform.errors import ConfigError
    from triform.settings import parse_assignments

    settings = parse_assignments(assignments or [])
    for name in ("data.text_column", "data.label_column"):
        if task == "translate" and name in settings:
            raise ConfigError(
                f"{name}={settings[name]} is not for translate: set data.source_column and data.target_column"
            )
    for option, value in options.items():
        if value is not None and value != "":
            check_agreement(option, value, OPTION_SETTINGS[option], settings)
            settings[OPTION_SETTINGS[option]] = value
    return settings


def show_seeds(made: Seeds, *, as_json: bool) -> None:
    """How far apart the seeds ended."""
    spread = made.spread
    if as_json:
        rows = [
            {"run": str(folder), "value": value} for folder, value in zip(made.folders, made.values, strict=True)
        ]
        print_json({"run": str(made.path), "metric": made.metric, **spread._asdict(), "seeds": rows})
        return
    for folder, value in zip(made.folders, made.values, strict=True):
        echo(f"{folder.name:<12}{made.metric} {format_metric(made.metric, value)}")
    if len(made.values) > 1:
        mean = format_mean(made.metric, spread.mean, spread.half_width)
        interval = format_range(made.metric, spread.low, spread.high)
        echo(f"{made.metric} of {len(made.values)} seeds: {mean} (95 % interval: {interval}, Student's t)")
    named = [str(folder) for folder in made.folders]
    echo(f"run folders: {', '.join(named if len(named) < 5 else [named[0], '...', named[-1]])}")
