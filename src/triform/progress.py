"""Progress reports of long work, such as a validation, for whoever shows them.

Work that takes long calls `report` or `tracked`; `reporting_to` says who receives the reports. Without a receiver a
report costs little. The receiver is kept in a context variable, so that threads do not mix their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

ProgressCallback = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Item = TypeVar("Item")
_callback: ContextVar[ProgressCallback | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress_to(callback: ProgressCallback) -> Iterator[None]:
    """Send the reports of the work done inside to `listener`."""
    token = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(token)


def report_progress(label: str, done: int, total: int) -> None:
    """Say that so much of something is done."""
    callback = _callback.get()
    if callback is not None:
        callback(label, done, total)


def track_progress(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """Yield the items, and report whenever the work on one is done."""
    report_progress(label, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        report_progress(label, done, total)
