"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.formatting import echo, format_metric, print_table

if TYPE_CHECKING:
    from triform.evaluation.baselines import BaselineMetrics
    from triform.run import Run

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
DeviceOption = Annotated[str, typer.Option(help="The device to compute on: auto, cpu, cuda or mps.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="fp32 (auto means the same), bf16 or int8. bf16 and int8 are faster on some hardware and "
        "change the answers a little."
    ),
]
AdapterOption = Annotated[
    str, typer.Option(metavar="F", help="Add the adapter.safetensors of a LoRA run that was trained from RUN.")
]
NoVerifyOption = Annotated[
    bool, typer.Option("--no-verify", help="Use files of a run even where they do not match their digests.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting, for example decode.beam_size=8. Repeatable."
    ),
]


def load_run(
    path: Path, *, device: str, precision: str = "auto", adapter: str = "", no_verify: bool = False
) -> Run:
    """Load a run, and print what the user should know about how it was opened."""
    from triform.errors import format_notice
    from triform.run import load

    run = load(path, device=device, precision=precision, adapter=adapter, verify=not no_verify)
    for notice in run.notices:
        echo(format_notice(notice, info_prefix="note: "), err=True)
    return run


def print_json(value: object, *, indent: int | None = 2) -> None:
    echo(json.dumps(_to_jsonable(value), ensure_ascii=False, indent=indent))


def _to_jsonable(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {name: _to_jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_decode_settings(assignments: list[str] | None) -> dict[str, object]:
    """`--set decode.X=v` as keyword arguments; other settings belong to training."""
    from triform.config.settings import parse_assignments
    from triform.errors import ConfigError

    settings = parse_assignments(assignments or [])
    for name in settings:
        if not name.startswith("decode."):
            raise ConfigError(f"--set {name}: only decode.* can be changed in a trained run")
    return {name.removeprefix("decode."): value for name, value in settings.items()}


def print_precision_note(run: Run) -> None:
    """Say on standard error that lower precision than fp32 was used; answers may differ a little."""
    if run.precision != "fp32":
        echo(f"note: computed in {run.precision}; answers may differ a little from fp32", err=True)


def print_metrics_table(
    metrics_by_set: Mapping[str, Mapping[str, float]], baselines_by_set: Mapping[str, BaselineMetrics] | None = None
) -> None:
    """Print one row per set and one column per metric; the baselines of a set come below it."""
    entries: list[tuple[str, Mapping[str, float], str]] = []
    for set_name, metrics in metrics_by_set.items():
        baselines = (baselines_by_set or {}).get(set_name)
        entries.append((set_name, metrics, ""))
        if baselines:
            entries += [
                (f"  {name}", baseline_metrics, baselines.reasons.get(name, ""))
                for name, baseline_metrics in baselines.items()
            ]
    names = list(dict.fromkeys(name for _, metrics, _ in entries for name in metrics))
    rows = [["set", *names, ""]]
    for set_name, metrics, reason in entries:
        cells = [format_metric(name, metrics[name]) if name in metrics else "-" for name in names]
        rows.append([set_name, *cells, f"none: {reason}" if reason else ""])
    print_table(rows, align="l" + "r" * len(names) + "l")
