"""Validate the labels and seeds that a user passes to an estimator."""

from __future__ import annotations

from triform.config import Config
from triform.config.settings import build_config
from triform.errors import ConfigError, DataError


def resolve_label_names(labels: list[str], configured: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the labels from the settings or, if there are none, from the data."""
    if "" in labels:
        raise DataError(f"the label of row {labels.index('') + 1} is empty; every text needs a label")
    if len(set(configured)) < len(configured) or "" in configured:
        raise ConfigError(f"data.labels={list(configured)} must be distinct, non-empty names")
    if configured and (unknown := set(labels) - set(configured)):
        raise DataError(f"label {min(unknown)!r} is not among data.labels: {', '.join(configured)}")
    names = configured or tuple(sorted(set(labels)))
    if len(names) < 2:
        raise DataError(f"there is only one label, {names[0]!r}; a classifier needs at least two labels")
    return names


def derive_row_seeds(config: Config, seed: int | None, n_rows: int) -> list[int]:
    """Return a seed for each row, the same as for the torch models."""
    seed = config.seed if seed is None else build_config({"seed": seed}, config).seed
    return [seed * 1_000_003 + row for row in range(n_rows)]
