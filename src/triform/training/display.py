"""The progress of training on a terminal, as a bar, and elsewhere as plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from triform.formatting import format_metric, print_message
from triform.training.trainer import Event

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

MIN_BAR, GOOD_BAR, MAX_BAR = 8, 20, 40  # columns: beside the time left, beside other text, and at most
REFRESHES = 5  # a second
MIN_EXPECTED_SECONDS = 10.0  # a shorter run is over before its expected time is read


class ProgressLine:
    """A listener that shows a bar with the time left on a terminal; elsewhere plain lines, now and then."""

    EVERY = 15.0  # seconds between plain lines

    def __init__(self, max_steps: int, metric: str, out: TextIO | None = None, *, eval_every: int = 0) -> None:
        self.max_steps, self.metric = max_steps, metric
        self.out = out or sys.stderr
        self.bar = Bar(self.out) if self.out.isatty() else None
        self.time_left = TimeLeft(max_steps, eval_every)
        self.loss = self.score = self.pace = ""
        self.last = time.monotonic()  # when a plain line was written
        self.ticked = 0.0  # when a tick was last shown
        self.expected = False  # whether the expected time was shown

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

    def tick(self, what: str, done: int, total: int) -> None:
        """So much of something is done: `step` of training, or part of a validation."""
        now = time.monotonic()
        self.time_left.tick(what, done, now)
        self._show_expected(done if what == "step" else 0)
        if self.bar is not None and now - self.ticked >= 1 / REFRESHES:
            self.ticked = now
            self._show_bar(self.bar, what, done, total)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()

    def _show_bar(self, bar: Bar, what: str, done: int, total: int) -> None:
        parts = [self.loss, self.score, *self.pace.split("  ")] if what == "step" else []
        bar.show(f"{what} {done}/{total}", done / max(1, total), parts, self.time_left.text)

    def _validated(self, step: int) -> None:
        """A validation is over: the bar shows steps again."""
        self.time_left.validated(time.monotonic())
        if self.bar is not None and self.bar.live is not None:
            self._show_bar(self.bar, "step", step, self.max_steps)

    def _show_expected(self, step: int) -> None:
        """Show how long training takes, once, as soon as that is known."""
        if self.expected or not step or not self.time_left.known:
            return
        self.expected = True
        seconds, steps = self.time_left.seconds(time.monotonic()), self.max_steps - step
        if seconds >= MIN_EXPECTED_SECONDS:
            more = ", without validations" if self.time_left.without_validations else ""
            self._line(f"about {clock(seconds)} for {'the next ' if step > steps else ''}{steps} steps{more}")

    def _train(self, event: Event) -> None:
        self.loss, self.pace = f"loss {event['loss']:.4f}", pace(event)
        if self.bar is None and time.monotonic() - self.last >= self.EVERY:
            parts = [f"step {event['step']}/{self.max_steps}", self.loss, self.score, self.pace]
            self._line("  ".join(filter(None, [*parts, self.time_left.text(time.monotonic())])))

    def _valid(self, event: Event) -> None:
        self.score = f"{self.metric} {format_metric(self.metric, event[self.metric])}"
        self._validated(event["step"])
        self._line(f"step {event['step']}/{self.max_steps}  valid loss {event['loss']:.4f}  {self.score}")

    def _seeds(self, event: Event) -> None:
        """A validation of several runs at once."""
        self.score = f"{self.metric} {event['spread']}"
        self._validated(event["step"])
        head = f"step {event['step']}/{self.max_steps}  {event['n']} seeds"
        self._line(f"{head}  valid loss {event['loss']:.4f}  {self.score}")

    def _resume(self, event: Event) -> None:
        self._line(f"going on from step {event['step']}")

    def _end(self, event: Event) -> None:
        reasons = {
            "max_steps": "done",
            "patience": "stopped early: no more progress",
            "interrupted": "interrupted",
        }
        best = ""
        if "best" in event:
            best = f"; best {self.metric} {format_metric(self.metric, event['best'])} at step {event['best_step']}"
        took = f"{event['step']} steps, {clock(event['seconds'])}"
        self._line(f"{reasons[event['reason']]} after {took}{best}{f'; {self.pace}' if self.pace else ''}")

    def _line(self, text: str) -> None:
        self.last = time.monotonic()
        if self.bar is not None:
            self.bar.line(text)
        else:
            print_message(text, self.out)


class TimeLeft:
    """How long training still takes, with its validations once one of them has been timed."""

    def __init__(self, max_steps: int, eval_every: int) -> None:
        self.max_steps, self.eval_every = max_steps, eval_every
        self.step, self.at = 0, 0.0  # the last step, and when it was done
        self.first: tuple[int, float] | None = None  # the first step, which takes longer than others, and its end
        self.step_seconds = self.valid_seconds = 0.0
        self.validating_since: float | None = None
        self.validated_for = 0.0  # seconds since the first step

    @property
    def known(self) -> bool:
        return self.step_seconds > 0

    @property
    def without_validations(self) -> bool:
        return not self.valid_seconds and self.validations_left() > 0

    def tick(self, what: str, done: int, now: float) -> None:
        if what != "step":
            self.validating_since = self.validating_since or now
            return
        if self.first is None:
            self.first = done, now
        elif done >= self.first[0] + 2:
            self.step_seconds = (now - self.first[1] - self.validated_for) / (done - self.first[0])
        self.step, self.at = done, now

    def validated(self, now: float) -> None:
        if self.validating_since is not None:
            self.valid_seconds, self.validating_since = now - self.validating_since, None
            self.validated_for += self.valid_seconds if self.first else 0.0

    def validations_left(self) -> int:
        if not self.eval_every:
            return 0
        return -(-self.max_steps // self.eval_every) - self.step // self.eval_every  # the last step has one too

    def seconds(self, now: float) -> float:
        left = (self.max_steps - self.step) * self.step_seconds + self.validations_left() * self.valid_seconds
        if self.validating_since is not None:
            return left + max(0.0, self.valid_seconds - (now - self.validating_since))
        return max(0.0, left - (now - self.at))

    def text(self, now: float) -> str:
        if not self.known:
            return ""
        return f"{'over ' if self.without_validations else ''}{clock(self.seconds(now))} left"


class Bar:
    """The last line of a terminal: what is done, a bar, and as much else as the terminal has room for."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.live: Live | None = None
        self.head, self.share = "", 0.0
        self.parts: list[str] = []
        self.left: Callable[[float], str] = lambda now: ""

    def show(self, head: str, share: float, parts: list[str], left: Callable[[float], str]) -> None:
        """`parts` are shown while there is room, the first ones first; `left` tells the time left at any moment."""
        self.head, self.share, self.parts, self.left = head, share, parts, left
        if self.live is None:
            self._start()

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self.out)
        if console.is_dumb_terminal:  # it cannot go back to the beginning of a line
            return
        live = Live(self, console=console, transient=True, refresh_per_second=REFRESHES, redirect_stdout=False)
        with suppress(OSError):  # the terminal was closed
            live.start()
            self.live = live

    def line(self, text: str) -> None:
        """A line above the bar, which stays."""
        if self.live is None:
            print_message(text, self.out)
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

        room = options.max_width - len(self.head) - 2  # columns for the bar and the rest
        texts: list[str] = []
        for text in filter(None, [self.left(time.monotonic()), *self.parts]):
            if room - len(text) - 1 < (GOOD_BAR if texts else MIN_BAR):
                break
            texts.append(text)
            room -= len(text) + 1
        row = Table.grid(padding=(0, 1))
        row.add_row(self.head, ProgressBar(1.0, self.share, width=max(1, min(MAX_BAR, room))), *texts)
        yield row


def pace(event: Event) -> str:
    """How fast it goes: what there is of tokens a second, step time, share of real tokens, memory, utilisation."""
    parts = [f"{event['tokens_per_s']:,.0f} tokens/s"]
    if "step_ms" in event:
        parts += [f"{duration(event['step_ms'])} a step", f"{100 * event['real_share']:.0f} % real"]
    if event.get("peak_memory"):
        parts.append(f"{event['peak_memory'] / 2**30:.2f} GiB")
    if "utilisation" in event:
        parts.append(f"{100 * event['utilisation']:.1f} % of the card")
    return "  ".join(parts)


def duration(milliseconds: float) -> str:
    """0.35 ms, 94 ms, 13.7 s."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2f} ms"


def clock(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
