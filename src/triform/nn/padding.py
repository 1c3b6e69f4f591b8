"""Rows of unequal length as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pad(rows: Sequence[Any], *, fill: int = 0, left: bool = False) -> tuple[Tensor, Tensor | None]:
    """Rows of tokens as (B, T), filled up on one side, and which entries are real (None: all of them)."""
    lengths = np.array([len(row) for row in rows])
    width = lengths.max()
    table = np.full((len(rows), width), fill, dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        if len(row):
            line[-len(row) if left else 0 : None if left else len(row)] = row
    if (lengths == width).all():
        return torch.from_numpy(table), None
    places = np.arange(width)
    keep = places >= (width - lengths)[:, None] if left else places < lengths[:, None]
    return torch.from_numpy(table), torch.from_numpy(keep)
