"""Handling Ctrl-C, SIGTERM and SIGHUP while a run is set up, trained and closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Protocol, TextIO

from triform.errors import TriformError
from triform.formatting import print_message

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAVING_MESSAGE = "stopping: saving the run; a second Ctrl-C stops at once, without saving"
STOPPING_NOW_MESSAGE = "stopping at once, without saving"
GRACE_SECONDS = 1.0  # how long the main thread may take to react to a signal before the process is ended
EXIT_INTERRUPTED = 130  # the exit code of an interrupted command


_running_as_command = threading.Event()  # set while the process is a triform command, and not another program


class Stoppable(Protocol):
    """A trainer, which can be asked to save and stop."""

    stop_requested: bool

    def stop(self) -> None:
        """Stop after the current step, or at once during a validation."""


@contextmanager
def handle_signals(
    trainer: Stoppable | None = None,
    stream: TextIO | None = None,
    exit_message: Callable[[], object] | None = None,
    *,
    alone: bool = True,
) -> Iterator[None]:
    """Let the first signal stop `trainer`, and a second one raise KeyboardInterrupt.

    Without a trainer the first signal raises KeyboardInterrupt. Each signal is acknowledged at once, also while a
    long torch operation keeps Python's own handlers waiting. A command whose main thread does not react, because it
    waits for another library, prints `exit_message()` and ends.

    Args:
        trainer: What to stop.
        stream: Where to acknowledge a signal; None: standard error.
        exit_message: Returns the message of a process that is ended without its main thread.
        alone: Whether this is the only process of the command. Several processes do not acknowledge signals, and a
            second signal does not stop a trainer at once, because each process may get the signal more than once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if trainer is None or (trainer.stop_requested and alone):
            raise KeyboardInterrupt
        if not trainer.stop_requested:
            trainer.stop()

    acknowledgement = _acknowledge_signals(trainer, stream, exit_message) if alone else nullcontext()
    with acknowledgement, _installed_handlers(on_signal):
        yield


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, while a command runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _running_as_command.set()
    try:
        with _installed_handlers(signal.default_int_handler):
            yield
    finally:
        _running_as_command.clear()


@contextmanager
def _installed_handlers(new_handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {signum: signal.getsignal(signum) for signum in SIGNALS}
    if previous.get(HANGUP) is signal.SIG_IGN:  # `nohup` ignores it to keep a command alive
        del previous[HANGUP]
    interrupted = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        try:
            new_handler(signum, frame)
        except KeyboardInterrupt:
            interrupted = True
            raise

    for signum in previous:
        signal.signal(signum, handle)
    try:
        yield
    except Exception as error:
        # Python 3.11 raises a RuntimeError if a class is being made, and a library may raise its own error.
        if interrupted and not isinstance(error, TriformError):
            raise KeyboardInterrupt from error
        raise
    finally:
        for signum, old_handler in previous.items():
            if old_handler is not None:  # None: it was not set from Python
                signal.signal(signum, old_handler)


@contextmanager
def _acknowledge_signals(
    trainer: Stoppable | None, stream: TextIO | None, exit_message: Callable[[], object] | None
) -> Iterator[None]:
    """Acknowledge signals from a thread that the interpreter's C handler wakes even if the main thread is busy."""
    if os.name == "nt":  # a wake-up descriptor must be a socket there
        yield
        return
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    finished = threading.Event()

    def acknowledge() -> None:
        count = 0
        while signal_byte := os.read(read_fd, 1):
            if signal_byte[0] in SIGNALS:
                count += 1
                text = STOPPING_NOW_MESSAGE if trainer is None or count > 1 else SAVING_MESSAGE
                print_message(text, stream)
                if exit_message is not None and _running_as_command.is_set() and not finished.wait(GRACE_SECONDS):
                    try:
                        print_message(f"triform: {exit_message()}")
                    finally:
                        os._exit(EXIT_INTERRUPTED)

    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    thread = threading.Thread(target=acknowledge, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        signal.set_wakeup_fd(previous_fd)
        os.close(write_fd)
        thread.join()
        os.close(read_fd)
