"""`builtin:NAME[/SPLIT]`: the sets that come with Triform, as pairs of texts or as one text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from triform.data import builtin
from triform.data.files import BUILTIN
from triform.errors import DataError

PAIRS: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "numbers": builtin.numbers,
    "reviews": builtin.reviews,
}
TEXTS: dict[str, Callable[[str], str]] = {"topics": builtin.topics}


def _parse(path: str) -> tuple[str, str]:
    """The name and the split; train when none is given."""
    name, _, split = path.removeprefix(BUILTIN).partition("/")
    split = split or "train"
    if name not in PAIRS and name not in TEXTS:
        known = ", ".join(BUILTIN + each for each in sorted((*PAIRS, *TEXTS)))
        raise DataError(f"no such builtin set; there are {known}", path=path)
    if split not in builtin.SPLITS:
        known = ", ".join(f"{BUILTIN}{name}/{each}" for each in builtin.SPLITS)
        raise DataError(f"no such split; there are {known}", path=path)
    return name, split


def named(path: str, task: str) -> str:
    """What was asked for or, when that is nothing, the set that comes with the task."""
    return path or BUILTIN + builtin.NAMES[task]


def validation_of(path: str) -> str:
    """The validation part of a builtin set given whole; for anything else there is none."""
    return f"{path}/valid" if path.startswith(BUILTIN) and "/" not in path else ""


def is_text(path: str) -> bool:
    """Whether the set is one running text."""
    return _parse(path)[0] in TEXTS


def is_for(path: str, task: str) -> bool:
    """Whether the set was made for this task."""
    return _parse(path)[0] == builtin.NAMES[task]


def require(path: str, task: str) -> None:
    """A DataError when the set was made for another task."""
    if not is_for(path, task):
        raise DataError(f"is no set to {task} with; that is {BUILTIN}{builtin.NAMES[task]}", path=path)


def text(path: str) -> str:
    """The content of a running text."""
    return _text(*_parse(path))


def pairs(path: str) -> tuple[tuple[str, str], ...]:
    """The content of a set of pairs: a text and its label, or a source and its target."""
    return _pairs(*_parse(path))


@cache  # a run reads its data several times, and these are made anew each time
def _text(name: str, split: str) -> str:
    return TEXTS[name](split)


@cache
def _pairs(name: str, split: str) -> tuple[tuple[str, str], ...]:
    return tuple(PAIRS[name](split))
