"""The callback that writes `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from triform.io.errors import write_errors, write_run_text
from triform.training.trainer import Callback, Event


class MetricsFile(Callback):
    """Appends each event to `metrics.jsonl`. A resume cuts the file back to where the checkpoint was written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_event(self, event: Event) -> None:
        if event["event"] == "extended":
            self._reopen(event["step"], event["max_steps"])
            return
        with write_errors(self.path, self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write(_format_event(event) + "\n")

    def _reopen(self, step: int, max_steps: int) -> None:
        """Remove the end of the run at `step`, and what an extended run wrote after it without a checkpoint."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        retained = []
        for event in filter(None, map(_parse_event, lines)):
            if event["event"] not in ("end", "sample") and event.get("step", 0) <= step:
                retained.append(event | ({"max_steps": max_steps} if event["event"] == "start" else {}))
        write_run_text(self.path, "".join(_format_event(event) + "\n" for event in retained))

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self.path.stat().st_size if self.path.exists() else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.path.exists():
            with write_errors(self.path, self.path.parent), self.path.open("r+b") as file:
                file.truncate(min(state["bytes"], self.path.stat().st_size))


def _format_event(event: Event) -> str:
    return json.dumps({name: _replace_non_finite(value) for name, value in event.items()}, ensure_ascii=False)


def _parse_event(line: str) -> Event | None:
    """Return the event on a line, or None if a kill cut the line short."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _replace_non_finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
