"""Read the history of a run from its folder: the events of metrics.jsonl and the settings of config.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from triform.errors import DataError
from triform.formatting import METRICS
from triform.io.events import parse_events
from triform.io.files import read_regular
from triform.io.run_config import refuse_links_of_run
from triform.io.run_layout import CONFIG_FILE, METRICS_FILE
from triform.reporting.charts import Point

Event = Mapping[str, Any]
EVENT_KINDS = (
    *("start", "notice", "train", "valid", "monitor", "best", "resume"),
    *("sample", "details", "baseline", "test", "end"),
)


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """The events and settings of a run. Steps that were repeated after a resume count once."""

    name: str
    start: Event
    events: Mapping[str, Sequence[Event]]
    settings: Mapping[str, Any] | None
    n_unreadable: int

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.start.get("task", "run"))

    @property
    def metric(self) -> str:
        """The metric that selects the best weights."""
        return str(self.start.get("metric", "loss"))

    @property
    def end(self) -> Event | None:
        """The last event of a run that has ended."""
        return self.events["end"][-1] if self.events["end"] else None

    @property
    def last_step(self) -> int:
        """The last step that was recorded."""
        steps = [
            event.get("step") for kind in ("train", "valid", "monitor", "end") for event in self.events[kind][-1:]
        ]
        return max((int(step) for step in steps if is_finite(step)), default=0)

    @property
    def valid_name(self) -> str:
        """The name of the validation set."""
        return str(self.start.get("valid_name", "valid"))

    @property
    def monitored_sets(self) -> list[str]:
        """The names of the sets that were evaluated with the validation set."""
        return list(dict.fromkeys(str(event.get("set")) for event in self.events["monitor"]))

    def curve(self, kind: str, key: str, eval_set: str = "") -> list[Point]:
        """Return the finite values of a key in the events of one kind, as points (step, value).

        Args:
            kind: The kind of the events, such as "train" or "valid".
            key: The key of the values.
            eval_set: For events of the kind "monitor": the name of the set.
        """
        events = (event for event in self.events[kind] if not eval_set or event.get("set") == eval_set)
        pairs = ((event.get("step"), event.get(key)) for event in events)
        return sorted((float(step), float(value)) for step, value in pairs if is_finite(step) and is_finite(value))

    def best(self) -> Point | None:
        """Return the step and the value of the best validation metric so far."""
        end = self.end or {}
        if is_finite(end.get("best_step")) and is_finite(end.get("best")):
            return float(end["best_step"]), float(end["best"])
        if recorded := self.curve("best", "value"):
            return recorded[-1]
        points = self.curve("valid", self.metric)
        higher_is_better = bool(self.start.get("higher_is_better", _is_higher_better(self.metric)))
        return (max if higher_is_better else min)(points, key=lambda point: point[1]) if points else None


def read_history(folder: Path) -> RunHistory:
    """Read the history of a run from its folder.

    Damaged lines are counted and skipped. An incomplete last line is skipped silently, because the run may be in
    progress.

    Raises:
        DataError: The folder has no readable metrics.jsonl.
        CheckpointError: A file of the folder is a link or a pipe.
    """
    refuse_links_of_run(folder)
    path = folder / METRICS_FILE
    try:
        parsed, n_unreadable = parse_events(read_regular(path))
    except OSError as error:
        raise DataError("there is no metrics.jsonl; pass the folder of a training run", path=path) from error
    name, settings = folder.resolve().name, _read_settings(folder)
    return build_history(name, parsed, settings=settings, n_unreadable=n_unreadable)


def build_history(
    name: str, parsed: Sequence[Event], *, settings: Mapping[str, Any] | None = None, n_unreadable: int = 0
) -> RunHistory:
    """Return the history of a run from its events, in the order in which they were recorded."""
    events: dict[str, list[Event]] = {kind: [] for kind in EVENT_KINDS}
    for event in parsed:
        kind = event.get("event")
        if not isinstance(kind, str) or kind not in events:  # perhaps from another version
            continue
        if kind == "resume":
            _drop_events_after(events, event.get("step"))
        events[kind].append(event)
    start = events["start"][-1] if events["start"] else {}
    return RunHistory(name=name, start=start, events=events, settings=settings, n_unreadable=n_unreadable)


def _drop_events_after(events: dict[str, list[Event]], step: Any) -> None:
    """Drop the events after the checkpoint that a run was resumed from, because the run repeats them."""
    events["end"].clear()
    events["test"].clear()
    for kind in ("train", "valid", "monitor", "best", "sample", "details", "baseline"):
        if is_finite(step):
            events[kind] = [e for e in events[kind] if not is_finite(e.get("step")) or e["step"] <= step]


def _read_settings(folder: Path) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(read_regular(folder / CONFIG_FILE).decode())
    except (OSError, ValueError, RecursionError):  # a report is useful without settings
        return None


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number. Booleans are not numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_higher_better(metric: str) -> bool:
    return metric not in METRICS or METRICS[metric].higher_is_better
