"""Choose the part of a training file that is held out for validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat

import numpy as np

from triform.config import Config
from triform.data.readers import count_units, is_running_text, read_lines
from triform.errors import DataError


def validation_mask(fraction: float) -> Iterator[bool]:
    """Yield for each row whether it is held out for validation.

    Rows are drawn at random from every block of a few rows, so that short files have validation rows too. The
    random seed is fixed, so that runs with different seeds are evaluated on the same rows.
    """
    if not fraction:
        yield from repeat(False)
    rng = np.random.default_rng(20_240_101)
    n_picks = 1 if fraction <= 0.25 else 4
    block_size = round(n_picks / fraction)
    while True:
        picked = set(rng.permutation(block_size)[:n_picks].tolist())
        yield from (index in picked for index in range(block_size))


def find_split_point(config: Config) -> int | None:
    """Return the end of the training part of a text, in characters or documents; None if it is the whole text."""
    data = config.data
    if data.valid or not data.valid_fraction:
        return None
    units = count_units(data.train, data)
    if units < 2:
        raise DataError(
            "the file has only one document, so none can be held out for validation; "
            "use --valid FILE, or set data.valid_fraction=0",
            path=data.train,
        )
    return max(1, int((1 - data.valid_fraction) * units))


def held_out_rows(config: Config, train: str, lines: Sequence[int]) -> list[bool]:
    """Return for each row of a training file whether it is held out for validation.

    Args:
        config: The settings of the run.
        train: The training file.
        lines: The line number of every row, in order.
    """
    if config.task != "generate":
        return list(islice(validation_mask(config.data.valid_fraction), len(lines)))
    stop = find_split_point(config) or 0
    if not is_running_text(train):
        return [index >= stop for index in range(len(lines))]
    offset, line_ends = 0, {}
    for line, text in read_lines(train):
        offset += len(text) + 1
        line_ends[line] = offset
    return [line_ends[line] - 1 > stop for line in lines]  # a line that is split counts as held out
