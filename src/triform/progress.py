"""Progress reports of long operations, such as a validation.

A long operation calls `report_progress` or `track_progress`. `report_progress_to` sets the callback that receives
the reports; without one, nothing is reported. The callback is a context variable, so each thread has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

ProgressCallback = Callable[[str, int, int], None]  # label, done, total
Item = TypeVar("Item")
_callback: ContextVar[ProgressCallback | None] = ContextVar("progress_callback", default=None)


@contextmanager
def report_progress_to(callback: ProgressCallback) -> Iterator[None]:
    """Send the reports of the operations inside the `with` block to `callback`."""
    token = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(token)


def report_progress(label: str, done: int, total: int) -> None:
    """Report that `done` of `total` items are done."""
    callback = _callback.get()
    if callback is not None:
        callback(label, done, total)


def track_progress(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """Yield the items, and report progress after each.

    >>> reports = []
    >>> with report_progress_to(lambda *report: reports.append(report)):
    ...     total = sum(track_progress([2, 3], "adding", 2))
    >>> total, reports
    (5, [('adding', 0, 2), ('adding', 1, 2), ('adding', 2, 2)])
    """
    report_progress(label, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        report_progress(label, done, total)
