"""What a user gives to a learner, looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import ConfigError, DataError


def check_texts(values: Iterable[str], name: str = "texts") -> list[str]:
    """As a list of plain strings, whatever could be walked over."""
    if isinstance(values, str):
        raise DataError(f"give a list of {name}, not one text by itself")
    try:
        iterator = iter(values)
    except TypeError:
        raise DataError(f"give a list of {name}, not {type(values).__name__}") from None
    texts = list(iterator)
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"{name} must be strings; row {row} is {text!r:.60}, {type(text).__name__}")
    return [str(text) for text in texts]  # those of an array are of another kind


def check_pairs(
    first: Iterable[str], second: Iterable[str], first_name: str, second_name: str
) -> tuple[list[str], list[str]]:
    """Both sides, as many of each."""
    first_texts, second_texts = check_texts(first, first_name), check_texts(second, second_name)
    if len(first_texts) != len(second_texts):
        raise DataError(
            f"there are {len(first_texts)} {first_name} and {len(second_texts)} {second_name}: they must be as many"
        )
    if not first_texts:
        raise DataError(f"there are no {first_name} to learn from")
    return first_texts, second_texts


def resolve_label_names(labels: list[str], configured: tuple[str, ...]) -> tuple[str, ...]:
    """The labels there are, in order: those of the settings or, where these leave it open, of the data."""
    if "" in labels:
        raise DataError(f"the label of row {labels.index('') + 1} is empty: every text needs one")
    if len(set(configured)) < len(configured) or "" in configured:
        raise ConfigError(f"data.labels={list(configured)} must be names, and no two alike")
    if configured and (unknown := set(labels) - set(configured)):
        raise DataError(f"label {min(unknown)!r} is not among data.labels: {', '.join(configured)}")
    names = configured or tuple(sorted(set(labels)))
    if len(names) < 2:
        raise DataError(f"there is only one label, {names[0]!r}; a classifier needs at least two labels")
    return names


def derive_row_seeds(config: Config, seed: int | None, n_rows: int) -> list[int]:
    """A seed for each row, as the torch models have it."""
    seed = config.seed if seed is None else build_config({"seed": seed}, config).seed
    return [seed * 1_000_003 + row for row in range(n_rows)]
