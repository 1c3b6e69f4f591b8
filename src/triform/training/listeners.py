"""Who hears of training: the metrics file and the line on the terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from triform.formatting import format_metric
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


class ProgressLine:
    """One line that rewrites itself on a terminal; elsewhere plain lines, at validations and now and then."""

    EVERY = 15.0  # seconds between plain lines

    def __init__(self, max_steps: int, metric: str, out: TextIO | None = None) -> None:
        self.max_steps, self.metric = max_steps, metric
        self.out = out or sys.stderr
        self.live = self.out.isatty()
        self.score, self.pace, self.width, self.last = "", "", 0, time.monotonic()
        self.shown: tuple[int, float] | None = None  # step and seconds when this process began

    def hear(self, event: Event) -> None:
        show = {
            "train": self._train,
            "valid": self._valid,
            "seeds": self._seeds,
            "end": self._end,
            "resume": self._resume,
        }
        if event["event"] in show:
            show[event["event"]](event)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing on a terminal outlives its process."""

    def _train(self, event: Event) -> None:
        self.shown = self.shown or (event["step"], event["seconds"])
        self.pace = f"; {pace(event)}"
        steps, seconds = event["step"] - self.shown[0], event["seconds"] - self.shown[1]
        left = f"  {clock((self.max_steps - event['step']) * seconds / steps)} left" if steps else ""
        text = f"step {event['step']}/{self.max_steps}  loss {event['loss']:.4f}{self.score}  {pace(event)}{left}"
        if self.live:
            self._rewrite(text)
        elif time.monotonic() - self.last >= self.EVERY:
            self._line(text)

    def _valid(self, event: Event) -> None:
        self.score = f"  {self.metric} {format_metric(self.metric, event[self.metric])}"
        self._line(f"step {event['step']}/{self.max_steps}  valid loss {event['loss']:.4f}{self.score}")

    def _seeds(self, event: Event) -> None:
        """A validation of several runs at once."""
        self.score = f"  {self.metric} {event['spread']}"
        head = f"step {event['step']}/{self.max_steps}  {event['n']} seeds"
        self._line(f"{head}  valid loss {event['loss']:.4f}{self.score}")

    def _resume(self, event: Event) -> None:
        self._line(f"going on from step {event['step']}")

    def _end(self, event: Event) -> None:
        reasons = {
            "max_steps": "done",
            "patience": "stopped early: no better score",
            "interrupted": "interrupted",
        }
        best = ""
        if "best" in event:
            best = f"; best {self.metric} {format_metric(self.metric, event['best'])} at step {event['best_step']}"
        took = f"{event['step']} steps, {clock(event['seconds'])}"
        self._line(f"{reasons[event['reason']]} after {took}{best}{self.pace}")

    def _line(self, text: str) -> None:
        if self.live:
            self._rewrite(text)
            text = ""
            self.width = 0
        self.out.write(text + "\n")
        self.out.flush()
        self.last = time.monotonic()

    def _rewrite(self, text: str) -> None:
        self.out.write("\r" + text.ljust(self.width))
        self.out.flush()
        self.width = len(text)


def pace(event: Event) -> str:
    """How fast it goes: what there is of tokens a second, step time, share of real tokens, memory, utilisation."""
    parts = [f"{event['tokens_per_s']:,.0f} tokens/s"]
    if "step_ms" in event:
        parts += [f"{event['step_ms']:.3g} ms a step", f"{100 * event['real_share']:.0f} % real"]
    if event.get("peak_memory"):
        parts.append(f"{event['peak_memory'] / 2**30:.2f} GiB")
    if "utilisation" in event:
        parts.append(f"{100 * event['utilisation']:.3g} % of the card")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
