"""What came out, as results/NAME.json: written after every variant, read for the tables."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import triform
from triform.charts import Point, thin
from triform.errors import CheckpointError, DataError
from triform.io.files import write_text

FORMAT = 1
MOST_POINTS = 60  # of a curve that is kept
Outcome = dict[str, Any]


def read(folder: Path, name: str) -> Outcome | None:
    """The outcome of a system; None where it was not run."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        found: Outcome = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT or found["system"] != name:
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise DataError(f"is not an outcome of {name} that this Triform reads; run it again", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from None
    return found


def write(folder: Path, outcome: Outcome) -> Path:
    path = folder / f"{outcome['system']}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(outcome, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror or error}; choose another --results"
        ) from None
    return path


def blank(name: str, *, quick: bool) -> Outcome:
    return {
        "format": FORMAT,
        "system": name,
        "quick": quick,
        "data": {},
        "leaks": {},
        "baselines": {},
        "unfit": {},
        "failures": {},
        "variants": [],
    }


def put(outcome: Outcome, variant: Mapping[str, Any], order: Sequence[str]) -> None:
    """A variant in its place, instead of an earlier run of it."""
    outcome["failures"].pop(variant["name"], None)
    others = [each for each in outcome["variants"] if each["name"] != variant["name"]]
    outcome["variants"] = sorted([*others, dict(variant)], key=lambda each: order.index(each["name"]))


def circumstances(device: Any, command: str) -> dict[str, str]:
    """Where and with what a run was made."""
    import torch

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}, {_processor()}"
    return {
        "device": where,
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": version("torch"),
        "triform": triform.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def events(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]


def curves(heard: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The losses of a run over its steps, thinned: in training, and on held-out data where there is any."""
    found: dict[str, list[Point]] = {"train": [], "valid": []}
    for event in heard:
        if event["event"] in found and event.get("loss") is not None:
            found[event["event"]].append((event["step"], float(f"{event['loss']:.5g}")))
    return {name: thin(points, MOST_POINTS) for name, points in found.items() if points}
