"""How far a long piece of work has come, reported to whoever shows it.

Work that takes long reports what it has done without knowing who listens; with nobody listening a report costs
little. The listener is kept in a context variable, so that threads do not hear of each other.
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
    """Let `listener` hear of the work that is done inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(what: str, done: int, total: int) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def tracked(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items, with a report whenever the work on one is done."""
    report(what, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        report(what, number, total)
