"""Ctrl-C, SIGTERM and SIGHUP while a run is prepared, trained and closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TextIO

from triform.formatting import print_message

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAVING = "stopping: saving the run; a second Ctrl-C stops at once, without saving"
AT_ONCE = "stopping at once, without saving"
GRACE_SECONDS = 1.0  # seconds in which the main thread may answer a signal, before a command is ended without it
INTERRUPTED = 130  # the exit code


_command = threading.Event()  # set while the process is a command of ours, and not a library in somebody else's


class Stoppable(Protocol):
    """What trains: it can be asked to save and stop."""

    stopping: bool

    def stop(self) -> None:
        """Stop after the current step, or inside a validation at once."""


@contextmanager
def handle_signals(
    trainer: Stoppable | None = None, out: TextIO | None = None, exit_message: Callable[[], object] | None = None
) -> Iterator[None]:
    """Let the first signal stop `trainer`, and a second one raise KeyboardInterrupt.

    With no trainer the first signal raises KeyboardInterrupt. Each signal is acknowledged at once on `out`, by
    default standard error, also while a long operation of torch keeps Python's own handlers waiting. A command
    whose main thread does not answer, because it waits for another library, prints `exit_message()` and ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if trainer is None or trainer.stopping:
            raise KeyboardInterrupt
        trainer.stop()

    with _acknowledging(trainer, out, exit_message), _handlers(handle):
        yield


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: by KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _command.set()
    try:
        with _handlers(signal.default_int_handler):
            yield
    finally:
        _command.clear()


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
def _acknowledging(
    trainer: Stoppable | None, out: TextIO | None, exit_message: Callable[[], object] | None
) -> Iterator[None]:
    """Start a thread that is woken by the interpreter's C handler, also while the main thread is busy."""
    if os.name == "nt":  # there a wake-up descriptor must be a socket, and SIGTERM is not sent to processes
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()

    def acknowledge() -> None:
        count = 0
        while number := os.read(reading, 1):
            if number[0] in SIGNALS:
                count += 1
                text = AT_ONCE if trainer is None or count > 1 else SAVING
                print_message(text, out)
                if exit_message is not None and _command.is_set() and not over.wait(GRACE_SECONDS):
                    try:
                        print_message(f"triform: {exit_message()}")
                    finally:
                        os._exit(INTERRUPTED)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=acknowledge, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
