"""Read and write result files, `reproduce/results/NAME.json`. They are written after every variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.errors import CheckpointError, DataError
from triform.io.files import write_text
from triform.reporting.charts import Point, downsample

FORMAT = 1
MAX_CURVE_POINTS = 60  # points of a stored curve
ExperimentResult = dict[str, Any]


def read_result(folder: Path, name: str) -> ExperimentResult | None:
    """Return the stored result of a system, or None if it was not run."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        result: ExperimentResult = json.loads(path.read_text(encoding="utf-8"))
        if result["format"] != FORMAT or result["system"] != name:
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"not a result of {name} that this version can read; run the system again", path=path
        ) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from None
    return result


def write_result(folder: Path, result: ExperimentResult) -> Path:
    """Write a result to `FOLDER/NAME.json`, and return the path."""
    path = folder / f"{result['system']}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or error}); choose another --results"
        ) from None
    return path


def empty_result(name: str, *, smoke: bool) -> ExperimentResult:
    """Return a result without variants."""
    return {
        "format": FORMAT,
        "system": name,
        "quick": smoke,
        "data": {},
        "leaks": {},
        "baselines": {},
        "unfit": {},
        "failures": {},
        "variants": [],
    }


def upsert_variant(result: ExperimentResult, variant_result: Mapping[str, Any], order: Sequence[str]) -> None:
    """Insert the entry of a variant in the declared order, and replace an earlier one."""
    result["failures"].pop(variant_result["name"], None)
    others = [entry for entry in result["variants"] if entry["name"] != variant_result["name"]]
    result["variants"] = sorted([*others, dict(variant_result)], key=lambda entry: order.index(entry["name"]))


def loss_curves(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Return the training and validation losses by step, downsampled."""
    points_by_kind: dict[str, list[Point]] = {"train": [], "valid": []}
    for event in events:
        if event["event"] in points_by_kind and event.get("loss") is not None:
            points_by_kind[event["event"]].append((event["step"], float(f"{event['loss']:.5g}")))
    return {name: downsample(points, MAX_CURVE_POINTS) for name, points in points_by_kind.items() if points}


def validation_rows(
    events: Sequence[Mapping[str, Any]], metrics: Sequence[str], valid_name: str
) -> list[dict[str, Any]]:
    """Return one entry for each validation: step, epoch, mean training loss, time, and metrics of every set."""
    rows: dict[int, dict[str, Any]] = {}
    losses: list[float] = []
    epochs_per_step = 0.0
    for event in events:
        if event["event"] == "train":
            losses.append(event["loss"])
            epochs_per_step = event["epoch"] / event["step"]
        if event["event"] in ("valid", "monitor"):
            if event["step"] not in rows:
                loss = round(sum(losses) / len(losses), 5) if losses else None
                epoch = round(event["step"] * epochs_per_step, 3)
                rows[event["step"]] = {"step": event["step"], "epoch": epoch, "loss": loss, "sets": {}}
                losses = []
            name = event.get("set", valid_name)
            rows[event["step"]]["seconds"] = round(event["seconds"], 1)
            rows[event["step"]]["sets"][name] = {
                metric: float(f"{event[metric]:.6g}") for metric in metrics if event.get(metric) is not None
            }
    return list(rows.values())


def validation_curve(events: Sequence[Mapping[str, Any]], metric: str, valid_name: str) -> list[Point]:
    """Return the epoch and the metric of each validation, downsampled."""
    rows = validation_rows(events, (metric,), valid_name)
    points = [(row["epoch"], row["sets"][valid_name][metric]) for row in rows if row["sets"].get(valid_name)]
    return downsample(points, MAX_CURVE_POINTS)
