"""Show the progress of training, as a bar on a terminal or in a notebook and as plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from triform.formatting import format_duration, format_metric, print_message
from triform.io.events import Event
from triform.notebook import message_stream, notebook_shell
from triform.training.callbacks import Callback
from triform.training.notebook_bar import NotebookBar
from triform.training.validation_table import ValidationTable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

MIN_BAR_COLUMNS = 8  # the time left is shown if at least this width remains for the bar
PREFERRED_BAR_COLUMNS = 20  # other texts are shown if at least this width remains
MAX_BAR_COLUMNS = 40
REFRESHES_PER_SECOND = 5
MIN_EXPECTED_SECONDS = 10.0  # the expected time of a shorter run is not shown
WINDOW_SECONDS = 2.0  # of steps that are timed together; on CUDA, single steps only queue work until the next log
MIN_WINDOWS, MAX_WINDOWS = 3, 120  # an estimate uses the later half of so many windows


class ProgressDisplay(Callback):
    """Callback that shows a bar with the time left on a terminal or in a notebook, and plain lines elsewhere.

    Args:
        max_steps: The number of steps of the run.
        metric: The metric to show after a validation.
        stream: Where to show progress. The default is standard error, and in a notebook the output of the cell.
        eval_every: The number of steps between validations; 0 if there are none.
        table: Shows the validations of several sets. With None there is one set, which is shown as a line.
        count_setups: Returns `Trainer.n_setups`.
    """

    LINE_INTERVAL_SECONDS = 15.0  # between plain lines

    def __init__(
        self,
        max_steps: int,
        metric: str,
        stream: TextIO | None = None,
        *,
        eval_every: int = 0,
        table: ValidationTable | None = None,
        count_setups: Callable[[], int] = lambda: 0,
    ) -> None:
        self.max_steps, self.metric, self.table, self.count_setups = max_steps, metric, table, count_setups
        self.evaluated: dict[str, Event] = {}  # sets of the current validation, for the next row of the table
        self.logged_losses: list[float] = []  # since the last row of the table
        self.heading_shown = False
        self.stream = stream or message_stream()
        self.bar: TerminalBar | NotebookBar | None = None
        if stream is None and notebook_shell() is not None:
            self.bar = NotebookBar()
        elif self.stream.isatty():
            self.bar = TerminalBar(self.stream)
        self.time_left = TimeEstimator(max_steps, eval_every)
        self.loss_text = self.metric_text = self.throughput_text = ""
        self.last_line_at = time.monotonic()  # when the last plain line was printed
        self.last_refresh_at = 0.0  # when the bar was last updated
        self.estimate_shown = False  # whether the expected time of the run was shown

    def on_event(self, event: Event) -> None:
        handlers = {
            "train": self._on_train,
            "valid": self._on_valid,
            "monitor": self._on_monitor,
            "seeds": self._on_seeds,
            "end": self._on_end,
            "resume": self._on_resume,
        }
        if event["event"] in handlers:
            handlers[event["event"]](event)

    def on_progress(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        self.time_left.update(label, done, now, self.count_setups())
        self._show_estimate(done if label == "step" else 0)
        if self.bar is not None and now - self.last_refresh_at >= 1 / REFRESHES_PER_SECOND:
            self.last_refresh_at = now
            self._show_bar(self.bar, label, done, total)

    def state_dict(self) -> dict[str, Any]:
        return {"logged_losses": self.logged_losses} if self.table is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.logged_losses = state.get("logged_losses", [])

    def close(self) -> None:
        """Remove the bar from the terminal, or leave its last state in a notebook."""
        if self.bar is not None:
            self.bar.close()

    def _show_bar(self, bar: TerminalBar | NotebookBar, label: str, done: int, total: int) -> None:
        parts = [self.loss_text, self.metric_text, *self.throughput_text.split("  ")] if label == "step" else []
        bar.show(f"{label} {done}/{total}", done / max(1, total), parts, self.time_left.format_left)

    def _on_validation_end(self, step: int) -> None:
        """Show steps again after a validation."""
        self.time_left.finish_validation(time.monotonic())
        if self.bar is not None and self.bar.is_shown:
            self._show_bar(self.bar, "step", step, self.max_steps)

    def _show_estimate(self, step: int) -> None:
        """Show once how long training takes, as soon as that can be estimated."""
        if self.estimate_shown or not step or not self.time_left.is_known:
            return
        self.estimate_shown = True
        seconds, steps = self.time_left.seconds_left(time.monotonic()), self.max_steps - step
        if seconds >= MIN_EXPECTED_SECONDS:
            suffix = ", without validations" if self.time_left.excludes_validations else ""
            self._print_line(
                f"about {format_duration(seconds)} for {'the next ' if step > steps else ''}{steps} steps{suffix}"
            )

    def _on_train(self, event: Event) -> None:
        self.loss_text, self.throughput_text = f"loss {event['loss']:.4f}", format_throughput(event)
        if self.table is not None:
            self.logged_losses.append(event["loss"])
        if (
            self.bar is None
            and self.table is None
            and time.monotonic() - self.last_line_at >= self.LINE_INTERVAL_SECONDS
        ):
            parts = [
                f"step {event['step']}/{self.max_steps}",
                self.loss_text,
                self.metric_text,
                self.throughput_text,
            ]
            self._print_line("  ".join(filter(None, [*parts, self.time_left.format_left(time.monotonic())])))

    def _on_valid(self, event: Event) -> None:
        self.metric_text = f"{self.metric} {format_metric(self.metric, event[self.metric])}"
        self._on_validation_end(event["step"])
        if self.table is None:
            self._print_line(
                f"step {event['step']}/{self.max_steps}  valid loss {event['loss']:.4f}  {self.metric_text}"
            )
        else:
            self._add_to_table(self.table, self.table.valid_name, event)

    def _on_monitor(self, event: Event) -> None:
        if self.table is not None:
            self._add_to_table(self.table, event["set"], event)

    def _add_to_table(self, table: ValidationTable, name: str, event: Event) -> None:
        """Print a row of the table once all sets of a validation have been evaluated."""
        self.evaluated[name] = event
        if len(self.evaluated) < len(table.sets):
            return
        if not self.heading_shown:
            self.heading_shown = True
            for line in table.heading():
                self._print_line(line)
        loss = sum(self.logged_losses) / len(self.logged_losses) if self.logged_losses else None
        self._print_line(table.row(event["step"], loss, self.evaluated, event["seconds"]))
        self.evaluated, self.logged_losses = {}, []

    def _on_seeds(self, event: Event) -> None:
        """Show a validation of several runs that are trained together."""
        self.metric_text = f"{self.metric} {event['spread']}"
        self._on_validation_end(event["step"])
        if self.table is not None:
            self._add_to_table(self.table, self.table.valid_name, event)
            return
        heading = f"step {event['step']}/{self.max_steps}  {event['n']} seeds"
        self._print_line(f"{heading}  valid loss {event['loss']:.4f}  {self.metric_text}")

    def _on_resume(self, event: Event) -> None:
        self._print_line(f"continuing from step {event['step']}")

    def _on_end(self, event: Event) -> None:
        reasons = {
            "max_steps": "done",
            "patience": "stopped early without further progress",
            "interrupted": "interrupted",
        }
        best_text = ""
        if "best" in event:
            best_text = (
                f"; best {self.metric} {format_metric(self.metric, event['best'])} at step {event['best_step']}"
            )
        elapsed = f"{event['step']} steps, {format_duration(event['seconds'])}"
        throughput = f"; {self.throughput_text}" if self.throughput_text else ""
        self._print_line(f"{reasons[event['reason']]} after {elapsed}{best_text}{throughput}")

    def _print_line(self, text: str) -> None:
        self.last_line_at = time.monotonic()
        if self.bar is not None:
            self.bar.print_line(text)
        else:
            print_message(text, self.stream)


class TimeEstimator:
    """Estimates the remaining training time. Validations are included after the first has been timed.

    The first steps of a run take longer than the others. So steps are timed in windows, which start anew after each
    step that compiled or captured something, and an estimate uses the later half of them.

    Args:
        max_steps: The number of steps of the run.
        eval_every: The number of steps between validations; 0 if there are none.
    """

    def __init__(self, max_steps: int, eval_every: int) -> None:
        self.max_steps, self.eval_every = max_steps, eval_every
        self.step, self.last_step_at = 0, 0.0  # the last step and its end time
        self.window_start: tuple[int, float] | None = None  # a step and its end time
        self.windows: deque[tuple[int, float]] = deque(maxlen=MAX_WINDOWS)  # the steps and the seconds of each
        self.n_setups = 0
        self.step_seconds = self.valid_seconds = 0.0
        self.validation_started_at: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether enough steps have been timed for an estimate."""
        return self.step_seconds > 0

    @property
    def excludes_validations(self) -> bool:
        """Whether the estimate excludes validations, because none has been timed."""
        return not self.valid_seconds and self.validations_left() > 0

    def update(self, label: str, done: int, now: float, n_setups: int = 0) -> None:
        """Receive the progress of training or of a validation, and the number of setups so far."""
        if label != "step":
            self.validation_started_at = self.validation_started_at or now
            return
        if self.window_start is None or n_setups != self.n_setups:
            self.window_start, self.n_setups = (done, now), n_setups
        first, started_at = self.window_start
        if done > first and now - started_at >= WINDOW_SECONDS:
            self.windows.append((done - first, now - started_at))
            self.window_start = done, now
            if len(self.windows) >= MIN_WINDOWS:
                steps, seconds = zip(*list(self.windows)[len(self.windows) // 2 :], strict=True)
                self.step_seconds = sum(seconds) / sum(steps)
        self.step, self.last_step_at = done, now

    def finish_validation(self, now: float) -> None:
        """Record that a validation has ended. It is not part of the window of steps around it."""
        if self.validation_started_at is not None:
            self.valid_seconds, self.validation_started_at = now - self.validation_started_at, None
            if self.window_start is not None:
                first, started_at = self.window_start
                self.window_start = first, started_at + self.valid_seconds

    def validations_left(self) -> int:
        """Return the number of remaining validations."""
        if not self.eval_every:
            return 0
        return (
            -(-self.max_steps // self.eval_every) - self.step // self.eval_every
        )  # the last step is validated too

    def seconds_left(self, now: float) -> float:
        """Return the estimated remaining time in seconds."""
        remaining = (self.max_steps - self.step) * self.step_seconds + self.validations_left() * self.valid_seconds
        if self.validation_started_at is not None:
            return remaining + max(0.0, self.valid_seconds - (now - self.validation_started_at))
        return max(0.0, remaining - (now - self.last_step_at))

    def format_left(self, now: float) -> str:
        """Return the remaining time as text; empty if it is unknown."""
        if not self.is_known:
            return ""
        return f"{'over ' if self.excludes_validations else ''}{format_duration(self.seconds_left(now))} left"


class TerminalBar:
    """A progress bar in the last line of a terminal, with a heading and as many other texts as fit."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live: Live | None = None
        self.heading, self.fraction = "", 0.0
        self.parts: Sequence[str] = []
        self.format_time_left: Callable[[float], str] = lambda now: ""

    @property
    def is_shown(self) -> bool:
        """Whether the bar is on the terminal."""
        return self.live is not None

    def show(
        self, heading: str, fraction: float, parts: Sequence[str], format_time_left: Callable[[float], str]
    ) -> None:
        """Update the line.

        Args:
            heading: The current activity, such as `step 10/40`.
            fraction: The fraction that is done.
            parts: Other texts, most important first.
            format_time_left: Returns the remaining time at a moment as text.
        """
        self.heading, self.fraction, self.parts, self.format_time_left = heading, fraction, parts, format_time_left
        if self.live is None:
            self._start()

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self.stream)
        if console.is_dumb_terminal:  # such a terminal cannot overwrite a line
            return
        live = Live(
            self, console=console, transient=True, refresh_per_second=REFRESHES_PER_SECOND, redirect_stdout=False
        )
        with suppress(OSError):  # the terminal was closed
            live.start()
            self.live = live

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        if self.live is None:
            print_message(text, self.stream)
            return
        with suppress(OSError):  # the terminal was closed
            self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.live is not None:
            with suppress(OSError):  # the terminal was closed
                self.live.stop()
            self.live = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        columns_left = options.max_width - len(self.heading) - 2  # for the bar and the texts
        texts: list[str] = []
        for text in filter(None, [self.format_time_left(time.monotonic()), *self.parts]):
            if columns_left - len(text) - 1 < (PREFERRED_BAR_COLUMNS if texts else MIN_BAR_COLUMNS):
                break
            texts.append(text)
            columns_left -= len(text) + 1
        row = Table.grid(padding=(0, 1))
        row.add_row(
            self.heading, ProgressBar(1.0, self.fraction, width=max(1, min(MAX_BAR_COLUMNS, columns_left))), *texts
        )
        yield row


def format_throughput(event: Event) -> str:
    """Format the rates of a `train` event: tokens per second, time per step, padding, memory, utilisation."""
    parts = [f"{event['tokens_per_s']:,.0f} tokens/s"]
    if "step_ms" in event:
        parts += [
            f"{format_duration(event['step_ms'] / 1000)} per step",
            f"{100 * (1 - event['real_share']):.0f} % padding",
        ]
    if event.get("peak_memory"):
        parts.append(f"{event['peak_memory'] / 2**30:.2f} GiB peak memory")
    if "utilisation" in event:
        parts.append(f"{100 * event['utilisation']:.1f} % GPU utilisation")
    return "  ".join(parts)
