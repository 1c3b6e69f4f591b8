"""The file that keeps every event of training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from triform.training.folder import write_text, writing
from triform.training.trainer import Event


class MetricsFile:
    """Appends each event to metrics.jsonl. A resume cuts the file back to where the checkpoint was written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def hear(self, event: Event) -> None:
        if event["event"] == "longer":
            self._reopen(event["step"], event["max_steps"])
            return
        with writing(self.path, self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write(_json(event) + "\n")

    def _reopen(self, step: int, max_steps: int) -> None:
        """Take back that the run had ended at `step`, and what a longer one wrote after it without saving."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        kept = []
        for event in filter(None, map(_event, lines)):
            if event["event"] not in ("end", "sample") and event.get("step", 0) <= step:
                kept.append(event | ({"max_steps": max_steps} if event["event"] == "start" else {}))
        write_text(self.path, "".join(_json(event) + "\n" for event in kept))

    def state(self) -> dict[str, Any]:
        return {"bytes": self.path.stat().st_size if self.path.exists() else 0}

    def restore(self, state: dict[str, Any]) -> None:
        if self.path.exists():
            with writing(self.path, self.path.parent), self.path.open("r+b") as file:
                file.truncate(min(state["bytes"], self.path.stat().st_size))


def _json(event: Event) -> str:
    return json.dumps({name: _plain(value) for name, value in event.items()}, ensure_ascii=False)


def _event(line: str) -> Event | None:
    """The event on a line; None where the line was cut."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
