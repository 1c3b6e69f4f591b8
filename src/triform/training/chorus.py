"""One progress line for many runs: what all of them have said of the same moment is told once, as a mean."""

from __future__ import annotations

from threading import Lock
from typing import Any

from triform.formatting import format_mean
from triform.stats import spread
from triform.training.display import ProgressLine
from triform.training.trainer import Event


class Voice:
    """What one run says, passed on."""

    def __init__(self, chorus: Chorus) -> None:
        self.chorus = chorus
        self.times: dict[str, int] = {}  # how often each kind of event was heard

    def hear(self, event: Event) -> None:
        kind = event["event"]
        self.times[kind] = self.times.get(kind, 0) + 1
        self.chorus.hear(self, self.times[kind], event)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing on a terminal outlives its process."""


class Chorus:
    """Waits until all who still train have logged, or validated, for the nth time; then tells the line."""

    MEANS = ("loss", "lr", "step_ms", "real_share", "grad_norm")
    SUMS = ("tokens_per_s", "utilisation")  # all of them share one device

    def __init__(self, line: ProgressLine) -> None:
        self.line, self.metric = line, line.metric
        self.voices: list[Voice] = []
        self.said: dict[tuple[str, int], list[Event]] = {}
        self.ended: list[Event] = []
        self.lock = Lock()  # files are written by threads, and events told by them

    def voice(self) -> Voice:
        self.voices.append(Voice(self))
        return self.voices[-1]

    def hear(self, voice: Voice, time: int, event: Event) -> None:
        kind = event["event"]
        with self.lock:
            if kind in ("train", "valid"):
                self.said.setdefault((kind, time), []).append(event)
            if leaves := kind in ("end", "diverged"):
                self.voices.remove(voice)
                self.ended += [event] if kind == "end" else []
            for key in [key for key, events in self.said.items() if len(events) >= len(self.voices)]:
                self._tell(key[0], self.said.pop(key))
            if leaves and self.ended and not self.voices:
                self._end()

    def _tell(self, kind: str, events: list[Event]) -> None:
        last = max(events, key=lambda event: event["step"])
        told = last | {name: _mean(events, name) for name in (*self.MEANS, self.metric) if name in last}
        if kind == "train":
            told |= {name: sum(event[name] for event in events) for name in self.SUMS if name in last}
            self.line.hear(told)
            return
        scores = spread([event[self.metric] for event in events])
        shown = format_mean(self.metric, scores.mean, scores.half_width)
        self.line.hear(told | {"event": "seeds", "n": len(events), "spread": shown})

    def _end(self) -> None:
        """The slowest tells when it was over; what came out is told by who asked for it."""
        last = max(self.ended, key=lambda event: event["step"])
        self.line.hear({name: value for name, value in last.items() if not name.startswith("best")})


def _mean(events: list[Event], name: str) -> float:
    return sum(float(event[name]) for event in events) / len(events)
