"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.completion import (
    complete_device,
    complete_from,
    complete_precision,
    complete_run,
    complete_setting,
)
from triform.cli.help import DATA, DEVICE, GENERATION, OUTPUT, RUN_FOLDER, SETTINGS, argument, flag, option
from triform.formatting import echo, format_metric, print_table

if TYPE_CHECKING:
    from triform.evaluation.baselines import BaselineMetrics
    from triform.run import Run
    from triform.tasks.prediction import Keep

RunArgument = Annotated[Path, argument("RUN", "Folder of a trained run.", complete=complete_run)]
EnsembleArgument = Annotated[
    Path,
    argument(
        "RUN",
        "Folder of a trained run. The folder of train --seeds, or several runs as A,B, is an ensemble, which "
        "averages the probabilities of its models.",
        complete=complete_run,
    ),
]
JsonOption = Annotated[bool, flag(OUTPUT, "--json", "Print the result as JSON.")]
QuietOption = Annotated[bool, flag(OUTPUT, "--quiet", "Show no progress.")]
DeviceOption = Annotated[
    str,
    option(
        DEVICE, "DEVICE", "Device to compute on: auto, cpu, cuda or mps.", complete=complete_device, name="--device"
    ),
]
PrecisionOption = Annotated[
    str,
    option(
        DEVICE,
        "NAME",
        "Precision of the weights: auto (the same as fp32), fp32, bf16 or int8. On some hardware, bf16 and int8 "
        "are faster; they change the results a little.",
        complete=complete_precision,
    ),
]
AdapterOption = Annotated[
    str, option(RUN_FOLDER, "FILE", "Apply the adapter.safetensors of a LoRA run that was trained from RUN.")
]
NoVerifyOption = Annotated[
    bool, flag(RUN_FOLDER, "--no-verify", "Use the files of a run even if they do not match their digests.")
]
KeepOption = Annotated[
    str,
    option(
        DATA,
        "END",
        "Which tokens of a text to read if it is longer than the model's context: first or last. The default is "
        "last for generate and first for the other tasks.",
        complete=complete_from(("first", "last")),
    ),
]
SetOption = Annotated[
    list[str] | None,
    option(
        SETTINGS,
        "NAME=VALUE",
        "Change a setting, for example model.dropout=0.2. Repeatable.",
        name="--set",
        complete=complete_setting,
    ),
]
DecodeSetOption = Annotated[
    list[str] | None,
    option(
        GENERATION,
        "NAME=VALUE",
        "Change a decoding setting, for example decode.length_penalty=0.8. Repeatable.",
        name="--set",
        complete=complete_setting,
    ),
]


def load_run(
    path: Path,
    *,
    device: str,
    precision: str = "auto",
    adapter: str = "",
    no_verify: bool = False,
) -> Run:
    """Load a run, and print what the user should know about how it was opened."""
    from triform.errors import format_notice
    from triform.run import load

    run = load(path, device=device, precision=precision, adapter=adapter, verify=not no_verify)
    for notice in run.notices:
        echo(format_notice(notice, info_prefix="note: "), err=True)
    return run


@contextmanager
def load_shared_run(path: Path, *, device: str, **options: Any) -> Iterator[Run]:
    """Load a run in each process that `torchrun` started, for a command whose work they share.

    The options are those of `load_run`. Only the main process prints inside the `with` block.
    """
    from triform.device import resolve_device
    from triform.world import join_world

    with join_world(resolve_device(device)) as world, silence(not world.is_main):
        run = load_run(path, device=device, **options)
        yield replace(run, world=world)


@contextmanager
def silence(silent: bool) -> Iterator[None]:
    """Print nothing inside the `with` block if `silent` is true."""
    if not silent:
        yield
        return
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    echo(json.dumps(_to_jsonable(value), ensure_ascii=False, indent=indent))


def _to_jsonable(value: object) -> object:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {name: _to_jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_decode_settings(assignments: list[str] | None) -> dict[str, object]:
    """Return the assignments of `--set` as keyword arguments for `predict`. Only `decode.*` is accepted."""
    from triform.config.settings import parse_assignments
    from triform.errors import ConfigError

    settings = parse_assignments(assignments or [])
    for name in settings:
        if not name.startswith("decode."):
            raise ConfigError(f"--set {name}: only decode.* settings can be changed after training")
    return {name.removeprefix("decode."): value for name, value in settings.items()}


def parse_keep(keep: str) -> Keep | None:
    """Return the value of `--keep`, or None if it was not given."""
    from triform.errors import ConfigError

    if keep not in ("", "first", "last"):
        raise ConfigError(f"--keep {keep}: choose first or last")
    return keep or None  # type: ignore[return-value]


def print_precision_note(run: Run) -> None:
    """Print a note to standard error if a lower precision than fp32 was used."""
    if run.precision != "fp32":
        echo(f"note: computed in {run.precision}; results may differ a little from fp32", err=True)


def print_metrics_table(
    metrics_by_set: Mapping[str, Mapping[str, float]],
    baselines_by_set: Mapping[str, BaselineMetrics] | None = None,
    variants_by_set: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> None:
    """Print a row for each set and a column for each metric. Variants and baselines are printed below their set."""
    entries: list[tuple[str, Mapping[str, float], str]] = []
    for set_name, metrics in metrics_by_set.items():
        baselines = (baselines_by_set or {}).get(set_name)
        entries.append((set_name, metrics, ""))
        variants = (variants_by_set or {}).get(set_name, {})
        entries += [(f"  {name}", variant_metrics, "") for name, variant_metrics in variants.items()]
        if baselines:
            entries += [
                (f"  {name}", baseline_metrics, baselines.reasons.get(name, ""))
                for name, baseline_metrics in baselines.items()
            ]
    names = list(dict.fromkeys(name for _, metrics, _ in entries for name in metrics))
    rows = [["set", *names, ""]]
    for set_name, metrics, reason in entries:
        cells = [format_metric(name, metrics[name]) if name in metrics else "-" for name in names]
        rows.append([set_name, *cells, f"not available: {reason}" if reason else ""])
    print_table(rows, align="l" + "r" * len(names) + "l")
