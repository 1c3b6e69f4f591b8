"""Trackers: callbacks that log a run to TensorBoard, MLflow, Weights & Biases or trackio.

A tracker opens its run at the start, logs every `train`, `valid` and `monitor` event, and stores the id of its run
in each checkpoint. A resumed run continues in the same place, as soon as there is something to log. Only the main
process has trackers. A tracker that fails is switched off with one warning, and training continues.
`triform.training.trackers` has one class for each package.
"""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from triform.config import Config
from triform.config.settings import flatten_config
from triform.errors import ConfigError, WarningText, format_notice, install_command
from triform.formatting import print_message
from triform.io.events import Event
from triform.training.callbacks import Callback

TRACKER_PACKAGES = {  # the package that each tracker imports
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "trackio": "trackio",
}
PROJECT = "triform"  # the name of the experiment or project in which runs are logged
LOGGED_EVENTS = ("train", "valid", "monitor")
UNLOGGED_FIELDS = ("event", "step", "set", "rows")


@dataclass(frozen=True)
class TrackerSpec:
    """A tracker that the user has requested, and where it writes; an empty location is its default."""

    name: str
    location: str = ""


def parse_trackers(requested: str | Sequence[str]) -> list[TrackerSpec]:
    """Parse `NAME` or `NAME=FOLDER`, and check that the packages are installed.

    >>> parse_trackers([])
    []

    Raises:
        ConfigError: A tracker is unknown or repeated, or its package is not installed.
    """
    specs: list[TrackerSpec] = []
    for text in [requested] if isinstance(requested, str) else requested:
        name, _, location = str(text).partition("=")
        if name not in TRACKER_PACKAGES:
            raise ConfigError(f"unknown tracker {name!r}; choose from {', '.join(TRACKER_PACKAGES)}")
        if any(spec.name == name for spec in specs):
            raise ConfigError(f"the tracker {name} is given twice; leave one out")
        if importlib.util.find_spec(TRACKER_PACKAGES[name]) is None:
            raise ConfigError(
                f"tracking with {name} needs the package {TRACKER_PACKAGES[name]}; "
                f"install it with {install_command('track')}"
            )
        specs.append(TrackerSpec(name, location))
    return specs


def build_trackers(
    requested: str | Sequence[str], config: Config, folder: Path, stream: TextIO | None = None
) -> list[Tracker]:
    """Return the requested trackers of a run.

    Args:
        requested: Names, each as `NAME` or `NAME=FOLDER`.
        config: The settings of the run.
        folder: The run folder.
        stream: Where a warning is printed; None: standard error.
    """
    specs = parse_trackers(requested)
    if not specs:
        return []
    classes = import_module("triform.training.trackers").TRACKERS
    return [classes[spec.name](spec, config, folder, stream) for spec in specs]


class Tracker(Callback):
    """Abstract base class of trackers. A subclass says how its package opens a run, logs values and ends it.

    Args:
        spec: The tracker that the user has requested.
        config: The settings of the run.
        folder: The run folder.
        stream: Where a warning is printed; None: standard error.
    """

    def __init__(self, spec: TrackerSpec, config: Config, folder: Path, stream: TextIO | None = None) -> None:
        self.spec, self.config, self.folder, self.stream = spec, config, folder, stream
        self.run_id = ""  # the run of the package; empty until it is opened
        self.is_open = self.is_disabled = False
        self._resume_step: int | None = None  # until the run is opened again

    @property
    def run_name(self) -> str:
        """The name of the run: that of its folder, for one of several seeds with the folder of all."""
        path = self.folder.absolute()
        return f"{path.parent.name}-{path.name}" if path.name.startswith("seed-") else path.name

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by their dotted names."""
        flat = flatten_config(self.config)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}

    @abstractmethod
    def open(self, step: int) -> str:
        """Open a new run, or that with `run_id` if it is set, and return its id.

        Args:
            step: The step from which the run continues; 0 for a new one.
        """

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Log values at a step."""

    @abstractmethod
    def finish(self, status: str, summary: dict[str, Any]) -> None:
        """End the run.

        Args:
            status: "finished", "interrupted" or "failed".
            summary: The result: the reason of the end, the best metric and its step.
        """

    def on_event(self, event: Event) -> None:
        kind = event["event"]
        if self.is_disabled:
            return
        if kind == "resume":  # a run that has ended already may be resumed, and then nothing follows
            self._resume_step = int(event.get("step", 0))
            return
        with self._without_failing():
            step = 0 if kind == "start" else self._resume_step
            if step is not None and kind in ("start", *LOGGED_EVENTS, "end"):
                self.run_id = self.open(step)
                self.is_open, self._resume_step = True, None
            if not self.is_open:
                return
            if kind in LOGGED_EVENTS:
                name = {"train": "train", "valid": self.config.data.valid_name}.get(kind) or event["set"]
                name = "train_set" if kind == "monitor" and name == "train" else name
                self.log({f"{name}/{field}": value for field, value in _numbers(event).items()}, event["step"])
            elif kind == "end":
                status = "interrupted" if event["reason"] == "interrupted" else "finished"
                names: tuple[str, ...] = ("reason", "best", "best_step", "seconds")
                summary = {name: event[name] for name in names if name in event}
                self._finish(status, summary)

    def close(self) -> None:
        """End the run as failed if training ended with an error."""
        if self.is_open and not self.is_disabled:
            with self._without_failing():
                self._finish("failed", {"reason": "error"})

    def _finish(self, status: str, summary: dict[str, Any]) -> None:
        self.is_open = False
        self.finish(status, summary)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id} if self.run_id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = str(state.get("run_id", ""))

    @contextmanager
    def _without_failing(self) -> Iterator[None]:
        """Switch the tracker off, with a warning, if something fails inside the `with` block."""
        try:
            yield
        except Exception as error:  # each package has its own errors
            self.is_disabled = True
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            warning = WarningText(f"{self.spec.name} has failed and is switched off; training continues ({reason})")
            print_message(format_notice(warning), self.stream)


def _numbers(event: Event) -> dict[str, float]:
    """Return the numbers of an event by their names."""
    return {
        name: float(value)
        for name, value in event.items()
        if name not in UNLOGGED_FIELDS and isinstance(value, int | float) and not isinstance(value, bool)
    }
