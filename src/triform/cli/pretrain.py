"""`triform pretrain`: train a model on texts without labels, from which `triform train --from` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from triform.cli.completion import complete_task
from triform.cli.help import DATA, RUN_FOLDER, TRAINING, flag, option
from triform.cli.model_argument import ConfigOption, PresetOption
from triform.cli.options import DeviceOption, JsonOption, NoVerifyOption, QuietOption, SetOption
from triform.cli.shorthands import with_shorthands
from triform.cli.train import (
    DryRunOption,
    FromOption,
    OutOption,
    OverwriteOption,
    SeedOption,
    TrackOption,
    ValidOption,
    collect_settings,
    start_training,
)
from triform.errors import ConfigError

OBJECTIVES = {"classify": "masked", "generate": "auto", "translate": "denoise"}


@with_shorthands("--epochs", "--max-steps", "--lr", "--batch-size", "--text-column")
def pretrain(
    data: Annotated[
        list[str] | None,
        option(
            DATA,
            "FILE",
            "Texts: lines of a text file, a column of a table, or a folder. Repeatable. Only --resume needs none.",
            name="--data",
        ),
    ] = None,
    for_: Annotated[
        str | None,
        option(
            TRAINING,
            "TASK",
            "Task of the model: classify (predicts masked tokens), generate (next tokens) or translate (restores "
            "noisy texts). The default is classify, or the task of the run to resume.",
            name="--for",
            complete=complete_task,
        ),
    ] = None,
    valid: ValidOption = None,
    preset: PresetOption = "",
    config: ConfigOption = None,
    set_: SetOption = None,
    from_: FromOption = "",
    seed: SeedOption = None,
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
    """Train a model on your own text without labels.

    A model that starts from the run with triform train --from takes over its vocabulary and its weights. Labels in
    the files are ignored.

    Examples:
        triform pretrain --data story.txt --out runs/texts
        triform pretrain --for translate --data train.en --data train.fr
    """
    first, *others = data or [""]
    stored_task = _stored_task(out, verify=not no_verify) if resume and out else ""
    if not first and not stored_task:
        raise ConfigError("give the texts with --data FILE; only --resume of a run in --out needs none")
    task = for_ or stored_task or "classify"
    assignments = [*(set_ or []), f"train.objective={find_objective(task, set_, n_files=1 + len(others))}"]
    options = {"--data": first, "--from": from_, "--seed": seed}
    settings = collect_settings(task, assignments, options, valid or [], others)
    flags: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "verify": not no_verify}
    run_options: dict[str, Any] = {"out": out, "device": device, "track": track or (), **flags}
    request: dict[str, Any] = {"preset": preset, "config": config, **settings}
    start_training(task, request, run_options, dry_run=dry_run, as_json=json_)


def _stored_task(out: str, *, verify: bool) -> str:
    """Return the task of the run in a folder, or "" if there is none."""
    from triform.io.run_config import read_run_config
    from triform.io.run_layout import CONFIG_FILE

    return read_run_config(Path(out), verify=verify).task if (Path(out) / CONFIG_FILE).exists() else ""


def find_objective(task: str, assignments: list[str] | None, *, n_files: int) -> str:
    """Return the objective of a task. A task that is unknown, or does not read so many files, is refused."""
    from triform.config import TASK_NAMES
    from triform.config.settings import parse_assignments

    if task not in OBJECTIVES:
        raise ConfigError(f"--for {task} is not a task; choose from {', '.join(TASK_NAMES)}")
    if task == "generate" and n_files > 1:
        raise ConfigError("--for generate reads one file or folder; put the files into one folder")
    objective = OBJECTIVES[task]
    if (requested := parse_assignments(assignments or []).get("train.objective", objective)) != objective:
        raise ConfigError(
            f"--for {task} sets train.objective={objective}; leave out --set train.objective={requested}"
        )
    return objective
