"""One progress display for several runs that are trained together: their events are combined into means."""

from __future__ import annotations

from threading import Lock

from triform.evaluation.statistics import summarise
from triform.formatting import format_mean
from triform.training.display import ProgressDisplay
from triform.training.trainer import Callback, Event


class RunProgress(Callback):
    """Passes the events of one run on to an `AggregateProgress`."""

    def __init__(self, aggregate: AggregateProgress) -> None:
        self.aggregate = aggregate
        self.event_counts: dict[str, int] = {}  # how often each kind of event was received

    def on_event(self, event: Event) -> None:
        event_name = event["event"]
        self.event_counts[event_name] = self.event_counts.get(event_name, 0) + 1
        self.aggregate.on_run_event(self, self.event_counts[event_name], event)

    def on_progress(self, label: str, done: int, total: int) -> None:
        self.aggregate.display.on_progress(label, done, total)

    def close(self) -> None:
        self.aggregate.display.close()


class AggregateProgress:
    """Waits until all runs that still train have logged, or validated, for the nth time, and shows the mean.

    Args:
        display: Where the combined events are shown.
    """

    AVERAGED_FIELDS = ("loss", "lr", "step_ms", "real_share", "grad_norm")
    SUMMED_FIELDS = ("tokens_per_s", "utilisation")  # the runs share one device

    def __init__(self, display: ProgressDisplay) -> None:
        self.display, self.metric = display, display.metric
        self.runs: list[RunProgress] = []
        self.pending: dict[tuple[str, int], list[Event]] = {}
        self.end_events: list[Event] = []
        self.lock = Lock()  # runs write their files, and emit events, in threads

    def add_run(self) -> RunProgress:
        """Return a callback for one more run."""
        self.runs.append(RunProgress(self))
        return self.runs[-1]

    def on_run_event(self, run: RunProgress, occurrence: int, event: Event) -> None:
        """Receive an event of a run, which is the nth of its kind."""
        event_name = event["event"]
        with self.lock:
            if event_name in ("train", "valid"):
                self.pending.setdefault((event_name, occurrence), []).append(event)
            if run_ended := event_name in ("end", "diverged"):
                self.runs.remove(run)
                self.end_events += [event] if event_name == "end" else []
            for key in [key for key, events in self.pending.items() if len(events) >= len(self.runs)]:
                self._emit(key[0], self.pending.pop(key))
            if run_ended and self.end_events and not self.runs:
                self._emit_end()

    def _emit(self, event_name: str, events: list[Event]) -> None:
        last = max(events, key=lambda event: event["step"])
        summary = last | {
            name: _mean(events, name) for name in (*self.AVERAGED_FIELDS, self.metric) if name in last
        }
        if event_name == "train":
            summary |= {name: sum(event[name] for event in events) for name in self.SUMMED_FIELDS if name in last}
            self.display.on_event(summary)
            return
        metric_summary = summarise([event[self.metric] for event in events])
        text = format_mean(self.metric, metric_summary.mean, metric_summary.half_width)
        self.display.on_event(summary | {"event": "seeds", "n": len(events), "spread": text})

    def _emit_end(self) -> None:
        """Show the end of the longest run. The results of all are shown by the command."""
        last = max(self.end_events, key=lambda event: event["step"])
        self.display.on_event({name: value for name, value in last.items() if not name.startswith("best")})


def _mean(events: list[Event], name: str) -> float:
    return sum(float(event[name]) for event in events) / len(events)
