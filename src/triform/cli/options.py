"""Options that several commands share, and how answers are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.formatting import echo, format_metric

if TYPE_CHECKING:
    from triform.baselines import Table
    from triform.run import Run

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Device = Annotated[str, typer.Option(help="The device to compute on: auto, cpu, cuda or mps.")]
Precision = Annotated[
    str,
    typer.Option(
        help="fp32 (auto means the same), bf16 or int8. bf16 and int8 are faster on some hardware and "
        "change the answers a little."
    ),
]
Adapter = Annotated[
    str, typer.Option(metavar="F", help="Add the adapter.safetensors of a LoRA run that was trained from RUN.")
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Use files of a run even where they do not match their digests.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting, for example decode.beam_size=8. Repeatable."
    ),
]


def open_run(run: Path, *, device: str, precision: str = "auto", adapter: str = "", no_verify: bool = False) -> Run:
    """Load a run, and print what the user should know about how it was opened."""
    from triform.errors import show_notice
    from triform.run import load

    opened = load(run, device=device, precision=precision, adapter=adapter, verify=not no_verify)
    for notice in opened.notices:
        echo(show_notice(notice, fact="note: "), err=True)
    return opened


def print_json(answer: object, *, indent: int | None = 2) -> None:
    echo(json.dumps(_plain(answer), ensure_ascii=False, indent=indent))


def _plain(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decode_settings(assignments: list[str] | None) -> dict[str, object]:
    """`--set decode.X=v` as keyword arguments; other settings belong to training."""
    from triform.errors import ConfigError
    from triform.settings import parse_assignments

    settings = parse_assignments(assignments or [])
    for name in settings:
        if not name.startswith("decode."):
            raise ConfigError(f"--set {name}: only decode.* can be changed in a trained run")
    return {name.removeprefix("decode."): value for name, value in settings.items()}


def say_precision(opened: Run) -> None:
    """Say on standard error that lower precision than fp32 was used; answers may differ a little."""
    if opened.precision != "fp32":
        echo(f"note: computed in {opened.precision}; answers may differ a little from fp32", err=True)


def print_scores(named: Mapping[str, Mapping[str, float]], beside: Mapping[str, Table] | None = None) -> None:
    """A table with a row a set and a column a score; under each set the baselines that stand beside it."""
    lines: list[tuple[str, Mapping[str, float], str]] = []
    for key, scores in named.items():
        table = (beside or {}).get(key)
        lines.append((key, scores, ""))
        if table:
            lines += [(f"  {name}", others, table.reasons.get(name, "")) for name, others in table.items()]
    names = list(dict.fromkeys(name for _, scores, _ in lines for name in scores))
    rows = [
        ["set", *names],
        *(
            [key, *(format_metric(name, scores[name]) if name in scores else "-" for name in names)]
            for key, scores, _ in lines
        ),
    ]
    print_table(rows, ["", *(reason for _, _, reason in lines)])


def print_table(rows: Sequence[Sequence[str]], reasons: Sequence[str] = ()) -> None:
    """The first column to the left, the others to the right; a row with a reason has nothing but that to show."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row, reason in zip(rows, reasons or [""] * len(rows), strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        echo("  ".join([row[0].ljust(widths[0]), *([f"none: {reason}"] if reason else cells)]))
