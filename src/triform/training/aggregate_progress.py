"""One progress display for several runs that are trained together. It shows the means of their events."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from triform.evaluation.statistics import summarise
from triform.formatting import METRICS, format_mean
from triform.io.events import Event
from triform.training.callbacks import Callback
from triform.training.display import ProgressDisplay


class RunProgress(Callback):
    """Callback that passes the events of one run on to an `AggregateProgress`."""

    def __init__(self, aggregate: AggregateProgress) -> None:
        self.aggregate = aggregate
        self.event_counts: Counter[str] = Counter()  # how often each kind of event was received

    def on_event(self, event: Event) -> None:
        kind = f"{event['event']} {event.get('set', '')}"
        self.event_counts[kind] += 1
        self.aggregate.on_run_event(self, f"{kind} {self.event_counts[kind]}", event)

    def on_progress(self, label: str, done: int, total: int) -> None:
        self.aggregate.display.on_progress(label, done, total)

    def close(self) -> None:
        self.aggregate.display.close()


class AggregateProgress:
    """Combines the events of several runs.

    When all active runs have logged or validated for the nth time, the mean of these events is shown.

    Args:
        display: The display of the combined events.
    """

    AVERAGED_FIELDS = ("loss", "lr", "step_ms", "real_share", "grad_norm")
    SUMMED_FIELDS = ("tokens_per_s", "utilisation")  # the runs share one device

    def __init__(self, display: ProgressDisplay) -> None:
        self.display, self.metric = display, display.metric
        self.runs: list[RunProgress] = []
        self.pending: dict[str, list[Event]] = {}  # events that not all runs have emitted yet
        self.end_events: list[Event] = []
        self.lock = Lock()  # runs write files and emit events in threads

    def add_run(self) -> RunProgress:
        """Return a callback for one more run."""
        self.runs.append(RunProgress(self))
        return self.runs[-1]

    def on_run_event(self, run: RunProgress, key: str, event: Event) -> None:
        """Receive an event of a run. The same event of every run has the same key."""
        event_name = event["event"]
        with self.lock:
            if event_name in ("train", "valid", "monitor"):
                self.pending.setdefault(key, []).append(event)
            if run_ended := event_name in ("end", "diverged"):
                self.runs.remove(run)
                self.end_events += [event] if event_name == "end" else []
            for complete in [name for name, events in self.pending.items() if len(events) >= len(self.runs)]:
                self._emit(self.pending.pop(complete))
            if run_ended and self.end_events and not self.runs:
                self._emit_end()

    def _emit(self, events: list[Event]) -> None:
        last = max(events, key=lambda event: event["step"])
        summary = last | {name: _mean(events, name) for name in (*self.AVERAGED_FIELDS, *METRICS) if name in last}
        if last["event"] == "monitor":
            self.display.on_event(summary)
            return
        if last["event"] == "train":
            summary |= {name: sum(event[name] for event in events) for name in self.SUMMED_FIELDS if name in last}
            self.display.on_event(summary)
            return
        metric_summary = summarise([event[self.metric] for event in events])
        text = format_mean(self.metric, metric_summary.mean, metric_summary.half_width)
        self.display.on_event(summary | {"event": "seeds", "n": len(events), "spread": text})

    def _emit_end(self) -> None:
        """Show the end of the longest run. The command shows the results of all runs."""
        last = max(self.end_events, key=lambda event: event["step"])
        self.display.on_event({name: value for name, value in last.items() if not name.startswith("best")})


def _mean(events: list[Event], name: str) -> float:
    return sum(float(event[name]) for event in events) / len(events)
