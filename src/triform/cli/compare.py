"""`triform compare`: train variants with the same seeds and test their differences for significance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triform.cli.options import DeviceOption, JsonOption, print_json
from triform.formatting import echo


def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The variants and what they are judged on.")],
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Models to train of each variant, instead of the study's.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where runs and report go; default runs/NAME.")] = "",
    device: DeviceOption = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json_: JsonOption = False,
) -> None:
    """Train variants of a model with the same seeds and say which differences are real.

    What DIR already holds is not trained again: a study that was interrupted goes on where it stopped.
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
