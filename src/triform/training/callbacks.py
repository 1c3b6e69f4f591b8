"""Observers of a run: the base class, and the callback that writes `metrics.jsonl`.

`Trainer.emit` passes every event of a run to the callbacks. An event is a dictionary with a name under `event`:

| name | when | fields |
|---|---|---|
| `start` | a new run starts | task, metric, parameters, device, max_steps, … |
| `notice` | there is a message for the user | level, text |
| `train` | every `log_every` steps | step, epoch, loss, lr, tokens_per_s, … |
| `valid` | after each validation | step, loss and the task's metrics |
| `monitor` | with each validation, for each additional set | set, step, loss and the task's metrics |
| `best` | a validation was the best so far | step, metric, value |
| `resume` | a run continues from a checkpoint | step |
| `extended` | a run that had ended is trained for longer | step, max_steps |
| `diverged` | training has diverged | step, text |
| `end` | training ended or was interrupted | step, reason, best, best_step |
| `sample` | a prediction of the finished model | step, input, output and expected output |
| `details` | after training: where the model is wrong on validation data | step, details |
| `baseline` | after training: comparison with a baseline | method, metric, value, baseline, verdict, … |
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from triform.io.errors import write_errors, write_run_text
from triform.io.events import Event, read_events
from triform.io.files import open_regular


class Callback:
    """Observer of a run, which receives every event. Subclass it and override `on_event`.

    A callback whose state must survive a resume also overrides `state_dict` and `load_state_dict`. Each checkpoint
    stores the state as JSON under the name of the class.

    >>> class PrintLoss(Callback):
    ...     def on_event(self, event: Event) -> None:
    ...         if event["event"] == "train":
    ...             print(f"step {event['step']}: loss {event['loss']:.2f}")
    >>> PrintLoss().on_event({"event": "train", "step": 10, "loss": 0.6931})
    step 10: loss 0.69
    """

    def on_event(self, event: Event) -> None:
        """Receive an event. The module's docstring lists the events and their fields."""

    def on_progress(self, label: str, done: int, total: int) -> None:
        """Receive the progress of the current work: `step` of training, or a part of a validation."""

    def close(self) -> None:
        """Release resources, such as a terminal. Called when training ends, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this callback for a checkpoint, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class MetricsFile(Callback):
    """Callback that appends each event to `metrics.jsonl`. A resume truncates the file to the checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_event(self, event: Event) -> None:
        if event["event"] == "extended":
            self._reopen(event["step"], event["max_steps"])
            return
        with write_errors(self.path, self.path.parent), open_regular(self.path, "a") as file:
            file.write(_format_event(event) + "\n")

    def _reopen(self, step: int, max_steps: int) -> None:
        """Remove the `end` event at `step`, and events that an extended run wrote after its last checkpoint."""
        retained = []
        for event in read_events(self.path):
            if event["event"] not in ("end", "sample", "details", "baseline") and event.get("step", 0) <= step:
                retained.append(event | ({"max_steps": max_steps} if event["event"] == "start" else {}))
        write_run_text(self.path, "".join(_format_event(event) + "\n" for event in retained))

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self.path.stat().st_size if self.path.exists() else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.path.exists():
            with write_errors(self.path, self.path.parent), open_regular(self.path, "r+b") as file:
                file.truncate(min(state["bytes"], file.seek(0, os.SEEK_END)))


def _format_event(event: Event) -> str:
    return json.dumps(_replace_non_finite(event), ensure_ascii=False)


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _replace_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
