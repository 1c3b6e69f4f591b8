"""`triform compare`: train variants with the same seeds and test their differences for significance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triform.cli.options import DeviceOption, JsonOption, print_json
from triform.formatting import echo


def compare(
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY.toml", help="The study: the variants and the data they are evaluated on."),
    ],
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Models to train per variant; the default is that of the study.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="The folder for runs and report; the default is runs/NAME.")
    ] = "",
    device: DeviceOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_: JsonOption = False,
) -> None:
    """Train variants of a model with the same seeds and say which differences are real.

    Models that DIR already holds are not trained again: an interrupted study continues where it stopped.
    """
    from triform.errors import ConfigError
    from triform.experiments.study.runner import compare as run_study
    from triform.experiments.study.tables import to_dict, to_text

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give how many models to train of each variant, 1 or more")
    result = run_study(study, seeds=seeds or 0, out=out, device=device, quiet=quiet)
    if json_:
        print_json(to_dict(result))
        return
    echo(to_text(result))
    echo(f"report: {result.path / 'study.html'} (and study.md, study.csv, study.json)")
