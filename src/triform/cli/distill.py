"""`triform distill`: train one model on the outputs of an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from triform.cli.completion import complete_run
from triform.cli.help import DATA, RUN_FOLDER, TRAINING, argument, flag, option
from triform.cli.options import DeviceOption, JsonOption, NoVerifyOption, QuietOption, SetOption
from triform.cli.shorthands import validate_agreement, with_shorthands
from triform.cli.train import OPTION_SETTINGS, OverwriteOption, print_run

TeacherArgument = Annotated[
    Path,
    argument(
        "TEACHER",
        "Folder of train --seeds, or a run, or several runs as A,B: the models to learn from.",
        complete=complete_run,
    ),
]
SeedOption = Annotated[
    int | None,
    option(
        TRAINING,
        "N",
        "Random seed for initialisation, shuffling and dropout. The default is that of the teacher's first run.",
    ),
]


@with_shorthands("--epochs", "--max-steps", "--lr", "--batch-size", "--text-column", "--label-column")
def distill(
    teacher: TeacherArgument,
    out: Annotated[str, option(RUN_FOLDER, "RUN", "Run folder to write.", name="--out")],
    data: Annotated[str, option(DATA, "FILE", "Training data. The default is that of the teacher.")] = "",
    set_: SetOption = None,
    seed: SeedOption = None,
    resume: Annotated[bool, flag(RUN_FOLDER, "--resume", "Continue the run in --out.")] = False,
    overwrite: OverwriteOption = False,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Train one model on the outputs of an ensemble.

    The new run learns the probabilities of the teacher, mixed with the labels or tokens of the data. It has the
    settings of the teacher's first run, unless you change them, and is used like any other run.

    Examples:
        triform distill runs/eight --out runs/one
        triform distill runs/eight --out runs/small --set model.n_layers=2
    """
    from triform.config.settings import parse_assignments
    from triform.experiments.distillation import distill as launch
    from triform.launch import RunOptions
    from triform.world import current_world

    settings = parse_assignments(set_ or [])
    for name, value in {"--data": data or None, "--seed": seed}.items():
        if value is not None:
            validate_agreement(name, value, OPTION_SETTINGS[name], settings)
            settings[OPTION_SETTINGS[name]] = value
    flags: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "verify": not no_verify}
    run = launch(teacher, options=RunOptions(out=out, device=device, **flags), **settings)
    if current_world().is_main:
        print_run(run, as_json=json_)
