"""`triform train`: train a model on a file and write a run folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import DeviceOption, JsonOption, NoVerifyOption, SetOption, print_json
from triform.cli.shorthands import validate_agreement, with_shorthands
from triform.formatting import echo, format_mean, format_metric, format_range

if TYPE_CHECKING:
    from triform.config.settings import Settings
    from triform.experiments.seeds import SeedResults

OPTION_SETTINGS = {
    "--data": "data.train",
    "--source": "data.source",
    "--target": "data.target",
    "--valid": "data.valid",
    "--from": "train.init_from",
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
    set_: SetOption = None,
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
    device: DeviceOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_: JsonOption = False,
    no_verify: NoVerifyOption = False,
) -> None:
    """Train a model on your text and write a run folder.

    Settings that you do not give are chosen from the size of the data. Ctrl-C saves the run and prints the command
    that continues it.
    """
    from triform.experiments.seeds import train_seeds
    from triform.launch import RunOptions
    from triform.launch import train as launch

    files = {"--data": data, "--source": source, "--target": target, "--valid": valid}
    settings = _settings(task, set_, files | {"--from": from_, "--embeddings": embeddings, "--seed": seed})
    options = RunOptions(
        out=out, resume=resume, overwrite=overwrite, device=device, quiet=quiet, verify=not no_verify
    )
    if seeds is not None:
        seed_runs = train_seeds(task, seeds, preset=preset, config=config, options=options, **settings)  # type: ignore[arg-type]
        print_seeds(seed_runs, as_json=json_)
        return
    run = launch(task, preset=preset, config=config, options=options, **settings)  # type: ignore[arg-type]
    if json_:
        print_json({"run": str(run.path), "task": run.config.task, **run.progress()})
        return
    echo(f"run folder: {run.path}")
    echo(f"report:     {run.path / 'report.html'}")
    example = {"classify": "some text", "generate": "Once upon", "translate": "a sentence"}[run.config.task]
    echo(f'try:        triform predict {shlex.quote(str(run.path))} "{example}"')


def _settings(task: str, assignments: list[str] | None, options: Mapping[str, str | int | None]) -> Settings:
    """The settings of `--set` and of the options that stand for one; "" and None are options left out."""
    from triform.config.settings import parse_assignments
    from triform.errors import ConfigError

    settings = parse_assignments(assignments or [])
    for name in ("data.text_column", "data.label_column"):
        if task == "translate" and name in settings:
            raise ConfigError(
                f"{name}={settings[name]} is not for translate: set data.source_column and data.target_column"
            )
    for option, value in options.items():
        if value is not None and value != "":
            validate_agreement(option, value, OPTION_SETTINGS[option], settings)
            settings[OPTION_SETTINGS[option]] = value
    return settings


def print_seeds(seed_runs: SeedResults, *, as_json: bool) -> None:
    """How far apart the seeds ended."""
    spread = seed_runs.summary
    if as_json:
        rows = [
            {"run": str(folder), "value": value}
            for folder, value in zip(seed_runs.folders, seed_runs.values, strict=True)
        ]
        print_json({"run": str(seed_runs.path), "metric": seed_runs.metric, **spread._asdict(), "seeds": rows})
        return
    for folder, value in zip(seed_runs.folders, seed_runs.values, strict=True):
        echo(f"{folder.name:<12}{seed_runs.metric} {format_metric(seed_runs.metric, value)}")
    if len(seed_runs.values) > 1:
        mean = format_mean(seed_runs.metric, spread.mean, spread.half_width)
        interval = format_range(seed_runs.metric, spread.low, spread.high)
        echo(
            f"{seed_runs.metric} of {len(seed_runs.values)} seeds: {mean} (95 % interval: {interval}, Student's t)"
        )
    folder_names = [str(folder) for folder in seed_runs.folders]
    displayed_names = folder_names if len(folder_names) < 5 else [folder_names[0], "...", folder_names[-1]]
    echo(f"run folders: {', '.join(displayed_names)}")
