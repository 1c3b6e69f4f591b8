"""Records of finished searches, with which a choice of settings can be checked."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import triform
from triform.config import Config
from triform.config.settings import flatten_config
from triform.errors import CheckpointError, DataError
from triform.experiments.engine import to_json_value
from triform.experiments.search.results import SearchResult, search_to_dict
from triform.io.files import write_text

FORMAT = 1
SearchRecord = dict[str, Any]


def build_record(result: SearchResult, environment: Mapping[str, str]) -> SearchRecord:
    """Return what others need to check a search: its space, trials, seeds, data, device and comparison.

    Paths and names of processes are left out.

    Args:
        result: The finished search.
        environment: The hardware, software versions and command.
    """
    record = search_to_dict(result)
    comparison: Any = record["comparison"]
    default: dict[str, Any] = {**flatten_config(Config()), **result.space.resolve({})}
    return {
        "format": FORMAT,
        **record,
        "trials": [_without_worker(trial) for trial in record["trials"]],  # type: ignore[attr-defined]
        "best": _without_worker(record["best"]) if record["best"] else None,
        "default": {setting.name: to_json_value(default[setting.name]) for setting in result.space.searched},
        "comparison": comparison and {name: comparison[name] for name in ("seeds", "variants", "pairs")},
        "environment": dict(environment),
    }


def _without_worker(trial: Any) -> dict[str, Any]:
    return {name: value for name, value in trial.items() if name != "worker"}


def write_record(path: Path, record: SearchRecord) -> None:
    """Write a record to a file.

    Raises:
        CheckpointError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None


def read_record(path: Path) -> SearchRecord:
    """Read a record.

    Raises:
        DataError: There is no such file, or it is not a record.
    """
    try:
        record: SearchRecord = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT or not record["best"]:
            raise KeyError
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from None
    except (ValueError, KeyError, TypeError):
        raise DataError("not the record of a search; write it with triform search --record", path=path) from None
    return record


def chosen_settings(record: SearchRecord) -> tuple[str, dict[str, Any]]:
    """Return the settings that a search chose by its validation metric, with their name.

    It is the best trial, unless the default was better in the comparison with new seeds.
    """
    best = f"trial-{record['best']['number']}"
    means = {row["variant"]: row["mean"] for row in (record["comparison"] or {}).get("variants", ())}
    if means:
        sign = 1 if record["higher_is_better"] else -1
        best = max((best, "default"), key=lambda name: sign * means[name])
    return best, record["default"] if best == "default" else record["best"]["settings"]


def describe_choice(settings: Mapping[str, Any], record: SearchRecord) -> str:
    """Return a phrase about the search that chose some settings.

    Raises:
        DataError: The settings are not those that the search chose.
    """
    name, selected = chosen_settings(record)
    complete: dict[str, Any] = {**flatten_config(Config()), **settings}
    for setting, value in selected.items():
        if (other := to_json_value(complete[setting])) != value:
            raise DataError(f"the search {record['name']} chose {setting}={value} ({name}), not {other}")
    n_trials, metric, best = record["counts"]["tried"], record["metric"], f"trial {record['best']['number']}"
    if name == "default":
        return (
            f"kept after a search: with new seeds, the best of {n_trials} trials had no better validation {metric}"
        )
    return f"chosen by search: {n_trials} trials, validation {metric}, {best}"


def environment_info(device: Any, command: str) -> dict[str, str]:
    """Return the hardware, software versions, date and command of a run."""
    import torch

    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}, {_cpu_name()}"
    return {
        "device": device_name,
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": version("torch"),
        "triform": triform.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
