"""Read the built-in datasets by name, `builtin:NAME[/SPLIT]`, as pairs of texts or as one plain text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from triform.data import builtin
from triform.data.files import BUILTIN_PREFIX
from triform.errors import DataError

PAIR_BUILDERS: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "numbers": builtin.numbers,
    "reviews": builtin.reviews,
}
TEXT_BUILDERS: dict[str, Callable[[str], str]] = {"sentences": builtin.sentences, "stories": builtin.stories}


def _parse_path(path: str) -> tuple[str, str]:
    """Split `builtin:NAME[/SPLIT]` into its name and its split, which is train by default."""
    name, _, split = path.removeprefix(BUILTIN_PREFIX).partition("/")
    if name == "topics":  # in earlier versions, a text that depended on the Python version
        successor = path.replace(f"{BUILTIN_PREFIX}topics", f"{BUILTIN_PREFIX}stories", 1)
        raise DataError(f"this set was replaced by {successor}", path=path)
    split = split or "train"
    if name not in PAIR_BUILDERS and name not in TEXT_BUILDERS:
        known = ", ".join(BUILTIN_PREFIX + other for other in sorted((*PAIR_BUILDERS, *TEXT_BUILDERS)))
        raise DataError(f"no such built-in set; choose from {known}", path=path)
    if split not in builtin.SPLITS:
        known = ", ".join(f"{BUILTIN_PREFIX}{name}/{other}" for other in builtin.SPLITS)
        raise DataError(f"no such split; choose from {known}", path=path)
    return name, split


def resolve_path(path: str, task: str) -> str:
    """Return the path, or the built-in set of the task if the path is empty."""
    return path or BUILTIN_PREFIX + builtin.DEFAULT_SETS[task]


def validation_path(path: str) -> str:
    """Return the validation split of a built-in set if its path names no split, else an empty string."""
    return f"{path}/valid" if path.startswith(BUILTIN_PREFIX) and "/" not in path else ""


def is_running_text(path: str) -> bool:
    """Return whether the set is one plain text rather than pairs."""
    return _parse_path(path)[0] in TEXT_BUILDERS


def matches_task(path: str, task: str) -> bool:
    """Return whether the set was made for this task."""
    name = _parse_path(path)[0]
    return task == "generate" if name in TEXT_BUILDERS else name == builtin.DEFAULT_SETS[task]


def require_task(path: str, task: str) -> None:
    """Raise a DataError if the set was made for another task."""
    if not matches_task(path, task):
        raise DataError(f"this set is not for {task}; use {BUILTIN_PREFIX}{builtin.DEFAULT_SETS[task]}", path=path)


def load_text(path: str) -> str:
    """Return the content of a set that is one plain text."""
    return _build_text(*_parse_path(path))


def load_pairs(path: str) -> tuple[tuple[str, str], ...]:
    """Return the rows of a set of pairs: a text and its label, or a source and its target."""
    return _build_pairs(*_parse_path(path))


@cache  # because a run reads its data several times
def _build_text(name: str, split: str) -> str:
    return TEXT_BUILDERS[name](split)


@cache
def _build_pairs(name: str, split: str) -> tuple[tuple[str, str], ...]:
    return tuple(PAIR_BUILDERS[name](split))
