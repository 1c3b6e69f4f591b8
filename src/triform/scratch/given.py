"""What a user gives to a learner, looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable

from triform.config import Config
from triform.errors import ConfigError, DataError
from triform.settings import build


def check_texts(given: Iterable[str], name: str = "texts") -> list[str]:
    """As a list of plain strings, whatever could be walked over."""
    if isinstance(given, str):
        raise DataError(f"give a list of {name}, not one text by itself")
    try:
        rows = iter(given)
    except TypeError:
        raise DataError(f"give a list of {name}, not {type(given).__name__}") from None
    texts = list(rows)
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"{name} must be strings; row {row} is {text!r:.60}, {type(text).__name__}")
    return [str(text) for text in texts]  # those of an array are of another kind


def check_pairs(
    one: Iterable[str], other: Iterable[str], name: str, other_name: str
) -> tuple[list[str], list[str]]:
    """Both sides, as many of each."""
    ones, others = check_texts(one, name), check_texts(other, other_name)
    if len(ones) != len(others):
        raise DataError(f"there are {len(ones)} {name} and {len(others)} {other_name}: they must be as many")
    if not ones:
        raise DataError(f"there are no {name} to learn from")
    return ones, others


def label_names(labels: list[str], chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The labels there are, in order: those of the settings or, where these leave it open, of the data."""
    if "" in labels:
        raise DataError(f"the label of row {labels.index('') + 1} is empty: every text needs one")
    if len(set(chosen)) < len(chosen) or "" in chosen:
        raise ConfigError(f"data.labels={list(chosen)} must be names, and no two alike")
    if chosen and (odd := set(labels) - set(chosen)):
        raise DataError(f"label {min(odd)!r} is not among data.labels: {', '.join(chosen)}")
    names = chosen or tuple(sorted(set(labels)))
    if len(names) < 2:
        raise DataError(f"there is only one label, {names[0]!r}; a classifier needs at least two labels")
    return names


def seeds_of(config: Config, seed: int | None, n: int) -> list[int]:
    """A seed for each row, as the torch models have it."""
    seed = config.seed if seed is None else build({"seed": seed}, config).seed
    return [seed * 1_000_003 + row for row in range(n)]
