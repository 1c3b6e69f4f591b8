"""`triform compare`: train variants with the same seeds and test their differences for significance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from triform.cli.help import OUTPUT, TRAINING, argument, option
from triform.cli.options import DeviceOption, JsonOption, QuietOption, print_json
from triform.cli.workers import WorkersOption, local_workers
from triform.formatting import echo


def compare(
    study: Annotated[
        Path, argument("STUDY.toml", "Study to run: a file with variants and the data to compare them on.")
    ],
    seeds: Annotated[
        int | None, option(TRAINING, "N", "Number of seeds for each variant. The default is that of the study.")
    ] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    out: Annotated[
        str, option(OUTPUT, "FOLDER", "Folder for the runs and the report. The default is runs/NAME.")
    ] = "",
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Train variants with the same seeds and test their differences.

    A study that was interrupted continues where it stopped: models that are already in FOLDER are kept. Several
    machines that share FOLDER share the work if each runs the same command.

    Examples:
        triform compare study.toml
        triform compare study.toml --seeds 5 --out runs/dropout
        triform compare study.toml --workers 2
    """
    from triform.errors import ConfigError
    from triform.experiments.study.runner import compare as run_study
    from triform.experiments.study.tables import print_study, to_dict

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: each variant needs at least 1 seed")
    arguments = ["compare", str(study), "--device", device, "--out", out, *(["--quiet"] if quiet else [])]
    arguments += ["--seeds", str(seeds)] if seeds else []
    with local_workers(arguments, workers) as start_workers:
        result = run_study(
            study,
            seeds=seeds or 0,
            out=out,
            by_seed=workers is not None,
            device=device,
            quiet=quiet,
            on_start=start_workers,
        )
    if json_:
        print_json(to_dict(result))
        return
    print_study(result)
    echo(f"report: {result.path / 'study.html'} (and study.md, study.csv, study.json)")
