"""Progress reports of long work, such as a validation, for whoever shows them.

Work that takes long calls `report` or `tracked`; `reporting_to` says who receives the reports. Without a receiver a
report costs little. The receiver is kept in a context variable, so that threads do not mix their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Report = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Item = TypeVar("Item")
_listener: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def reporting_to(listener: Report) -> Iterator[None]:
    """Send the reports of the work done inside to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Say that so much of something is done."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def tracked(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Yield the items, and report whenever the work on one is done."""
    report(what, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        report(what, number, total)
