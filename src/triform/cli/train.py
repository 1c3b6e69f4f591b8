"""`triform train`: train a model on a file and write a run folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.completion import complete_from, complete_run, complete_task
from triform.cli.evaluate import parse_named_sets
from triform.cli.help import DATA, OUTPUT, RUN_FOLDER, TRAINING, argument, flag, option
from triform.cli.model_argument import ConfigOption, PresetOption
from triform.cli.options import DeviceOption, JsonOption, NoVerifyOption, QuietOption, SetOption, print_json
from triform.cli.shorthands import validate_agreement, with_shorthands
from triform.formatting import echo, format_duration, format_mean, format_metric, format_range, print_table

if TYPE_CHECKING:
    from triform.config.settings import Settings
    from triform.experiments.seed_results import SeedResults
    from triform.launch import RunOptions
    from triform.run import Run
    from triform.training.estimate import TrainingEstimate

OPTION_SETTINGS = {
    "--data": "data.train",
    "--source": "data.source",
    "--target": "data.target",
    "--from": "train.init_from",
    "--embeddings": "train.embeddings",
    "--seed": "seed",
}


DataOption = Annotated[
    str,
    option(DATA, "FILE", "Training data: a table, a text file or builtin:NAME. The default is a built-in dataset."),
]
ValidOption = Annotated[
    list[str] | None,
    option(
        DATA,
        "[NAME=]FILE",
        "Validation data; for translate also SOURCE,TARGET. The default is a part of the training data. "
        "Repeatable: all sets are evaluated during training, and the first one selects the best weights.",
    ),
]
ExtraDataOption = Annotated[
    list[str] | None,
    option(
        DATA,
        "FILE",
        "Further training data for classify and translate, from which nothing is held out. Repeatable.",
        name="--extra-data",
    ),
]
FromOption = Annotated[
    str,
    option(
        TRAINING,
        "RUN",
        "Fine-tune this run or published model: a run folder, a Hugging Face folder or hub:OWNER/NAME.",
        name="--from",
        complete=complete_run,
    ),
]
EmbeddingsOption = Annotated[
    str,
    option(TRAINING, "FILE", "Initialise the token embeddings with these word vectors; see triform vectors."),
]
SeedOption = Annotated[
    int | None,
    option(TRAINING, "N", "Random seed for initialisation, shuffling and dropout. The default is 0."),
]
SeedsOption = Annotated[
    int | None,
    option(
        TRAINING, "N", "Train N models, whose seeds start at --seed. Each has its own folder, such as RUN/seed-0."
    ),
]
OutOption = Annotated[
    str,
    option(RUN_FOLDER, "RUN", "Run folder to write. The default is runs/TASK-DATA, with a number if that exists."),
]
DryRunOption = Annotated[
    bool,
    flag(TRAINING, "--dry-run", "Print parameters, memory and estimated time, and train nothing."),
]
OverwriteOption = Annotated[bool, flag(RUN_FOLDER, "--overwrite", "Replace the run in --out if there is one.")]


TrackOption = Annotated[
    list[str] | None,
    option(
        OUTPUT,
        "NAME[=FOLDER]",
        "Also log the run with tensorboard, mlflow, wandb (offline) or trackio. Repeatable.",
        name="--track",
        complete=complete_from(("tensorboard", "mlflow", "wandb", "trackio")),
    ),
]


@with_shorthands("--epochs", "--max-steps", "--lr", "--batch-size", "--text-column", "--label-column")
def train(
    task: Annotated[str, argument("TASK", "Task: classify, generate or translate.", complete=complete_task)],
    data: DataOption = "",
    source: Annotated[str, option(DATA, "FILE", "For translate: source sentences, one per line.")] = "",
    target: Annotated[str, option(DATA, "FILE", "For translate: their translations in the same order.")] = "",
    valid: ValidOption = None,
    extra_data: ExtraDataOption = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    set_: SetOption = None,
    from_: FromOption = "",
    embeddings: EmbeddingsOption = "",
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    out: OutOption = "",
    resume: Annotated[bool, flag(RUN_FOLDER, "--resume", "Continue the run in --out.")] = False,
    overwrite: OverwriteOption = False,
    no_verify: NoVerifyOption = False,
    dry_run: DryRunOption = False,
    track: TrackOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Train a model on your text and write a run folder.

    Settings that you do not give are chosen from the size of the data. Ctrl-C saves the run and prints the command
    that continues it.

    Examples:
        triform train classify --data reviews.csv --out runs/reviews
        triform train generate --data story.txt --preset small --epochs 3
        triform train translate --source train.en --target train.fr
    """
    files = {"--data": data, "--source": source, "--target": target, "--from": from_, "--embeddings": embeddings}
    settings = collect_settings(task, set_, files | {"--seed": seed}, valid or [], extra_data or [])
    flags: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "verify": not no_verify}
    options: dict[str, Any] = {"out": out, "device": device, "track": track or (), **flags}
    request: dict[str, Any] = {"preset": preset, "config": config, **settings}
    start_training(task, request, options, seeds=seeds, dry_run=dry_run, as_json=json_)


def start_training(
    task: str,
    request: dict[str, Any],
    run_options: dict[str, Any],
    *,
    seeds: int | None = None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train one model or several seeds, or estimate what it costs, and print the result.

    Args:
        task: The task.
        request: The preset, the config and the settings.
        run_options: The fields of `RunOptions`.
        seeds: The number of models; None: one, without a folder for each seed.
        dry_run: Whether to print an estimate instead of training.
        as_json: Whether to print JSON.
    """
    from triform.experiments.seeds import train_seeds
    from triform.launch import RunOptions, estimate
    from triform.launch import train as launch
    from triform.world import current_world, refuse_several_processes

    options = RunOptions(**run_options)
    if dry_run or seeds is not None:
        refuse_several_processes(f"triform train {'--dry-run' if dry_run else '--seeds'}")
    if dry_run:
        _validate_dry_run(options, seeds)
        print_estimate(estimate(task, options=options, **request), as_json=as_json)  # type: ignore[arg-type]
        return
    if seeds is not None:
        print_seeds(train_seeds(task, seeds, options=options, **request), as_json=as_json)  # type: ignore[arg-type]
        return
    run = launch(task, options=options, **request)  # type: ignore[arg-type]
    if current_world().is_main:
        print_run(run, as_json=as_json)


def print_run(run: Run, *, as_json: bool) -> None:
    """Print the folder of a trained run and a command that uses it."""
    if as_json:
        print_json({"run": str(run.path), "task": run.config.task, **run.progress(), **_baseline_entry(run)})
        return
    echo(f"run folder: {run.path}")
    echo(f"report:     {run.path / 'report.html'}")
    task, path = run.config.task, shlex.quote(str(run.path))
    if run.config.train.objective != "auto":
        echo(f"next:       triform train {task} --from {path} --data FILE")
        return
    example = {"classify": "some text", "generate": "Once upon", "translate": "a sentence"}[task]
    echo(f'try:        triform predict {path} "{example}"')


def _baseline_entry(run: Run) -> dict[str, object]:
    """Return the comparison of a run with a baseline under `baseline`; nothing if it was not compared."""
    from triform.reporting.run_history import read_history

    events = read_history(run.path).events["baseline"]
    return {"baseline": {name: value for name, value in events[-1].items() if name != "event"}} if events else {}


def _validate_dry_run(options: RunOptions, seeds: int | None) -> None:
    from triform.errors import ConfigError

    for name, is_set in {"--resume": options.resume, "--seeds": seeds is not None}.items():
        if is_set:
            raise ConfigError(f"--dry-run estimates one new run; leave out {name}")


def print_estimate(estimate: TrainingEstimate, *, as_json: bool) -> None:
    """Print what a run costs, after the notices about its data."""
    from dataclasses import asdict

    from triform.analysis.host_memory import GIB
    from triform.errors import format_notice, notice_level

    if as_json:
        notices = [{"level": notice_level(notice), "text": notice} for notice in estimate.notices]
        print_json(asdict(estimate) | {"notices": notices})
        return
    for notice in estimate.notices:
        echo(format_notice(notice), err=True)
    trainable = f", {estimate.trainable:,} of them trainable" if estimate.trainable < estimate.parameters else ""
    free = f"{estimate.available_bytes / GIB:.2f} GiB are free on {estimate.device}"
    print_table(
        [
            ["", "estimate"],
            ["parameters", f"{estimate.parameters:,}{trainable}"],
            ["memory", f"about {estimate.memory_bytes / GIB:.2f} GiB; {free}"],
            ["examples", f"{estimate.train_examples:,} for training, {estimate.valid_examples:,} for validation"],
            ["steps", f"{estimate.steps:,}"],
            ["time", f"about {format_duration(estimate.seconds)}"],
        ],
        align="ll",
    )


def collect_settings(
    task: str,
    assignments: list[str] | None,
    options: Mapping[str, str | int | None],
    valid: list[str],
    extra_data: list[str],
) -> Settings:
    """Return the settings that `--set` and the options give. Options that are "" or None were not given."""
    from triform.config.merging import validation_settings
    from triform.config.settings import parse_assignments
    from triform.errors import ConfigError

    settings = parse_assignments(assignments or [])
    for name in ("data.text_column", "data.label_column"):
        if task == "translate" and name in settings and "train.objective" not in settings:
            raise ConfigError(
                f"{name}={settings[name]} has no effect on translate; "
                "use --set data.source_column=NAME and --set data.target_column=NAME"
            )
    for option_name, value in options.items():
        if value is not None and value != "":
            validate_agreement(option_name, value, OPTION_SETTINGS[option_name], settings)
            settings[OPTION_SETTINGS[option_name]] = value
    if valid:
        has_names = len(valid) > 1 or "=" in valid[0]
        sets = parse_named_sets(valid, "--valid") if has_names else {"valid": valid[0]}
        for name, setting_value in validation_settings(sets).items():
            validate_agreement("--valid", setting_value, name, settings)
            settings[name] = setting_value
    if extra_data:
        validate_agreement("--extra-data", tuple(extra_data), "data.extra", settings)
        settings["data.extra"] = tuple(extra_data)
    return settings


def print_seeds(seed_runs: SeedResults, *, as_json: bool) -> None:
    """Print the metric of each seed, and their mean with its confidence interval."""
    spread = seed_runs.summary
    if as_json:
        seed_entries = [
            {"run": str(folder), "value": value}
            for folder, value in zip(seed_runs.folders, seed_runs.values, strict=True)
        ]
        print_json(
            {"run": str(seed_runs.path), "metric": seed_runs.metric, **spread._asdict(), "seeds": seed_entries}
        )
        return
    rows = [
        [folder.name, format_metric(seed_runs.metric, value)]
        for folder, value in zip(seed_runs.folders, seed_runs.values, strict=True)
    ]
    print_table([["run", seed_runs.metric], *rows])
    if len(seed_runs.values) > 1:
        mean = format_mean(seed_runs.metric, spread.mean, spread.half_width)
        interval = format_range(seed_runs.metric, spread.low, spread.high)
        echo(
            f"{seed_runs.metric} of {len(seed_runs.values)} seeds: {mean} (95 % interval: {interval}, Student's t)"
        )
    folder_names = [str(folder) for folder in seed_runs.folders]
    displayed_names = folder_names if len(folder_names) < 5 else [folder_names[0], "...", folder_names[-1]]
    echo(f"run folders: {', '.join(displayed_names)}")
    if len(folder_names) > 1:
        echo(f"ensemble:    triform evaluate {shlex.quote(str(seed_runs.path))}")
