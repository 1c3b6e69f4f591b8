"""List the runs of a server: task, data, state, step and metric of each, from a few bytes of their files.

A listing reads the settings that it shows, the first and the last kilobytes of `metrics.jsonl`, and the lock. What
was read is kept until one of the files changes, so a page can ask for the list every few seconds.
"""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from triform.errors import CheckpointError, TriformError
from triform.formatting import format_metric, metric_title
from triform.io.events import parse_event
from triform.io.files import open_regular, read_regular
from triform.io.locks import LockHolder, find_lock_holder
from triform.io.run_config import read_run_config, refuse_links_of_run
from triform.io.run_layout import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    LAST_CONFIG_KEY,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FORMAT,
    STATE_FILE,
)
from triform.reporting.run_history import is_finite
from triform.serving.models import file_stamp
from triform.serving.uploads import find_upload_label

HEAD_BYTES, TAIL_BYTES, MAX_TAIL_BYTES = 4_096, 24_576, 4 << 20
TEXT_EVENTS = {"sample", "details", "baseline"}  # events that follow the end of a run
MAX_STATE_BYTES = 1 << 20  # of the state of a checkpoint
SEED_FOLDER = re.compile(r"seed-\d+")
# Lines of config.toml, as Triform writes it: the start of a table, or a setting that the list shows.
CONFIG_LINE = re.compile(rb"^(?:\[(\w+)\]|(format|task|seed|train|source|kind) = (.+))$", re.MULTILINE)
State = Literal["training", "finished", "stopped", "failed", "damaged"]
Event = Mapping[str, Any]


class MetricValue(msgspec.Struct, kw_only=True, frozen=True):
    """A metric as a number and as the report writes it."""

    name: str
    title: str
    value: float
    text: str


class RunSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One run of the list. `id` is its path relative to the folder of runs, or its name."""

    id: str
    name: str
    task: str = ""
    kind: str = ""
    data: str = ""
    state: State
    step: int | None = None
    max_steps: int | None = None
    metric: MetricValue | None = None
    started: str | None = None
    updated: str | None = None
    seconds: float | None = None
    parameters: int | None = None
    seed: int | None = None
    group: str = ""
    error: str = ""


def name_metric(name: str, value: float) -> MetricValue:
    """Return a metric with its title and its text."""
    return MetricValue(name=name, title=metric_title(name), value=value, text=format_metric(name, value))


class RunList:
    """Summaries of runs, kept until their files change. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._summaries: dict[str, tuple[tuple[object, ...], RunSummary]] = {}
        self._lock = threading.Lock()

    def summarise(self, run_id: str, folder: Path) -> RunSummary:
        """Return the summary of a run folder. It says what is wrong with a folder that cannot be read."""
        holder = find_lock_holder(folder)
        stamps = (folder, *(file_stamp(folder / name) for name in (CONFIG_FILE, METRICS_FILE, MODEL_FILE)))
        with self._lock:
            known = self._summaries.get(run_id)
        if known and known[0] == (*stamps, holder):
            return known[1]
        summary = summarise_run(run_id, folder, holder)
        with self._lock:
            self._summaries[run_id] = (*stamps, holder), summary
        return summary

    def forget_others(self, run_ids: Collection[str]) -> None:
        """Forget runs that no longer exist."""
        with self._lock:
            for run_id in self._summaries.keys() - set(run_ids):
                del self._summaries[run_id]


def summarise_run(run_id: str, folder: Path, holder: LockHolder | None) -> RunSummary:
    """Read the summary of a run from its files."""
    name = PurePosixPath(run_id).name
    group = str(PurePosixPath(run_id).parent) if SEED_FOLDER.fullmatch(name) else ""
    try:
        refuse_links_of_run(folder)
        settings = read_listed_settings(folder)
        start, last = read_ends(folder / METRICS_FILE)
    except (TriformError, OSError) as error:
        state: State = "damaged" if holder is None else "training"
        return RunSummary(id=run_id, name=name, group=group, state=state, error=str(error))
    state, error_text = _find_state(folder, holder, last)
    steps = [last[kind].get("step") for kind in ("train", "valid", "monitor", "end") if kind in last]
    seconds = [value for event in last.values() if is_finite(value := event.get("seconds"))]
    max_steps, parameters = (start.get(key) for key in ("max_steps", "parameters"))
    return RunSummary(
        id=run_id,
        name=name,
        task=settings.get("task", ""),
        kind=settings.get("model.kind", ""),
        data=_name_data(settings),
        state=state,
        step=max((int(step) for step in steps if is_finite(step)), default=None),
        max_steps=int(max_steps) if is_finite(max_steps) else None,
        metric=_find_metric(folder, start, last),
        started=str(start["time"]) if "time" in start else None,
        updated=_modified_time(folder),
        seconds=max(seconds, default=None),
        parameters=int(parameters) if is_finite(parameters) else None,
        seed=settings.get("seed"),
        group="" if group == "." else group,
        error=error_text,
    )


def read_listed_settings(folder: Path) -> dict[str, Any]:
    """Return the few settings that a list shows, without the cost of parsing the whole file.

    Raises:
        CheckpointError: The settings are damaged or from a newer Triform.
    """
    content = read_regular(folder / CONFIG_FILE)
    settings: dict[str, Any] = {}
    table = ""
    for match in CONFIG_LINE.finditer(content):
        if match[1]:
            table = f"{match[1].decode()}."
        else:
            try:
                value = tomllib.loads(f"value = {match[3].decode()}")["value"]
            except ValueError:
                continue
            settings[table + match[2].decode()] = value
    is_complete = content.rstrip().rpartition(b"\n")[2].startswith(LAST_CONFIG_KEY.rpartition(".")[2].encode())
    if settings.get("format") == RUN_FORMAT and is_complete and content.endswith(b"\n"):
        return settings
    config = read_run_config(folder, verify=False)  # or an error that says what is wrong
    data = {"data.train": config.data.train, "data.source": config.data.source}
    return {"task": config.task, "seed": config.seed, "model.kind": config.model.kind, **data}


def read_ends(path: Path) -> tuple[Event, dict[str, Event]]:
    """Return the `start` event of metrics.jsonl, and the last event of each kind near its end."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
            size = os.fstat(file.fileno()).st_size
            last = _find_last_events(head, 0) if size <= HEAD_BYTES else {}
            for n_bytes in (TAIL_BYTES, MAX_TAIL_BYTES):  # the texts of samples may be longer than a short tail
                if size > HEAD_BYTES and not last.keys() - TEXT_EVENTS:
                    offset = file.seek(max(0, size - n_bytes))
                    last = _find_last_events(file.read(n_bytes), offset)
    except OSError:
        return {}, {}
    start = parse_event(head.partition(b"\n")[0]) or {}
    return start if start.get("event") == "start" else {}, last


def _find_last_events(content: bytes, offset: int) -> dict[str, Event]:
    """Return the last event of each kind in the content of a file that starts at an offset."""
    last: dict[str, Event] = {}
    for line in content.split(b"\n")[1 if offset else 0 :]:
        if (event := parse_event(line)) is not None:
            last.pop(event["event"], None)  # the order of the kinds is that of their last events
            last[event["event"]] = event
    return last


def _find_state(folder: Path, holder: LockHolder | None, last: Mapping[str, Event]) -> tuple[State, str]:
    if holder is not None:
        return "training", ""
    if list(last)[-1:] == ["diverged"]:
        return "failed", str(last["diverged"].get("text", "training diverged"))
    end = last.get("end")
    has_model = (folder / MODEL_FILE).exists()
    if (end is not None and end.get("reason") != "interrupted") or (not last and has_model):
        return ("finished", "") if has_model else ("damaged", f"{MODEL_FILE} is missing")
    return "stopped", ""


def _find_metric(folder: Path, start: Event, last: Mapping[str, Event]) -> MetricValue | None:
    name = str(start.get("metric", ""))
    value = last.get("end", {}).get("best")
    if not is_finite(value):
        value = last.get("best", {}).get("value")
    if not is_finite(value):
        value = _read_checkpoint_best(folder).get(name)
    if not name or not is_finite(value):
        return None
    return name_metric(name, value)


def _read_checkpoint_best(folder: Path) -> Mapping[str, Any]:
    """Return the best metrics in the state of the latest checkpoint, or an empty mapping."""
    states = sorted((folder / CHECKPOINTS_FOLDER).glob(f"step-*/{STATE_FILE}"))
    try:
        if not states or states[-1].stat().st_size > MAX_STATE_BYTES:
            return {}
        best = json.loads(read_regular(states[-1]))["progress"]["best"]
    except (OSError, CheckpointError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return best if isinstance(best, dict) else {}


def _name_data(settings: Mapping[str, Any]) -> str:
    """Return a short name of the training data: the name of its file, or of the built-in set."""
    data = str(settings.get("data.train") or settings.get("data.source") or "")
    return data if ":" in data else find_upload_label(data) or PurePosixPath(data).name


def _modified_time(folder: Path) -> str | None:
    for name in (METRICS_FILE, CONFIG_FILE):
        try:
            return datetime.fromtimestamp((folder / name).stat().st_mtime).isoformat(timespec="seconds")
        except OSError:
            continue
    return None
