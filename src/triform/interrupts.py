"""Ctrl-C, SIGTERM and SIGHUP while a run is prepared, trained and closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TextIO

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAVING = "stopping: saving after this step; a second Ctrl-C stops at once, without saving"
AT_ONCE = "stopping at once, without saving"


class Stoppable(Protocol):
    """What trains: it can be asked to save and stop."""

    stopping: bool

    def stop(self) -> None:
        """Stop after the current step, or inside a validation at once."""


@contextmanager
def handle_signals(trainer: Stoppable | None = None, out: TextIO | None = None) -> Iterator[None]:
    """Let the first signal stop `trainer`, and a second one raise KeyboardInterrupt.

    With no trainer the first signal raises KeyboardInterrupt. Each signal is acknowledged at once on `out`, by
    default standard error, also while a long operation of torch keeps Python's own handlers waiting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if trainer is None or trainer.stopping:
            raise KeyboardInterrupt
        trainer.stop()

    with _acknowledging(trainer, out), _handlers(handle):
        yield


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: by KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handlers(signal.default_int_handler):
        yield


@contextmanager
def _handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if before.get(HANGUP) is signal.SIG_IGN:  # that is how `nohup` keeps a command alive
        del before[HANGUP]
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)


@contextmanager
def _acknowledging(trainer: Stoppable | None, out: TextIO | None) -> Iterator[None]:
    """A thread that hears of signals from the interpreter's C handler, which waits for nothing."""
    if os.name == "nt":  # there a wake-up descriptor must be a socket, and SIGTERM is not sent to processes
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def acknowledge() -> None:
        count = 0
        while heard := os.read(reading, 1):
            if heard[0] in SIGNALS:
                count += 1
                text = AT_ONCE if trainer is None or count > 1 else SAVING
                print(text, file=out or sys.stderr, flush=True)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=acknowledge, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
