"""Data that lies on the device, so that a step sends only row numbers there and batches are gathered by it.

Gathered batches come in few shapes: widths and numbers of rows are rounded up to a rung, and a row numbered -1 is
filling, which nothing is learned from. A recorded step can then be replayed for every batch of its shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.data.loader import Indices
from triform.data.store import TokenStore

MOST_TOKENS = 1 << 31  # four bytes each; larger data stays where it is
AT_ONCE = 1 << 24  # tokens sent at a time
FILLING = -1


class Plan(NamedTuple):
    """A batch on paper: its shape, its rows filled up to it, and how much is in it."""

    shape: tuple[int, ...]
    rows: Indices
    weight: int  # predictions
    n_tokens: int  # real ones
    n_places: int  # with the padding: what is computed


class Resident(Protocol):
    """A data set on the device."""

    def plan(self, indices: Indices) -> Plan:
        """How these examples lie in a batch."""

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Any:
        """The batch itself; the numbers stay on the device, and nothing waits."""


def n_rows_of(n: int, width: int, train: TrainConfig) -> int:
    """Rows of a batch of n examples so wide: as many for every batch of the width, so that shapes are few."""
    return train.batch_size or max(n, train.batch_tokens // width)


def filled(indices: Indices, n_rows: int) -> Indices:
    """Row numbers, with as much filling as is missing."""
    return np.concatenate([indices, np.full(n_rows - len(indices), FILLING)])


def fits(*stores: TokenStore) -> bool:
    return sum(store.total for store in stores) <= MOST_TOKENS


def sent(numbers: Any, device: torch.device, kind: torch.dtype = torch.int32) -> Tensor:
    """An array on the device, a part at a time: it may be mapped from disk."""
    made = torch.empty(len(numbers), dtype=kind, device=device)
    for start in range(0, len(numbers), AT_ONCE):
        part = np.asarray(numbers[start : start + AT_ONCE], dtype=np.int64)
        made[start : start + len(part)] = torch.from_numpy(part).to(device, kind)
    return made


class Sequences:
    """A store of sequences on the device, each cut at a length; what belongs after it stays."""

    def __init__(self, store: TokenStore, max_len: int, device: torch.device, after: tuple[int, ...] = ()) -> None:
        lengths = store.lengths
        self.tokens = sent(store.tokens, device)
        self.starts = sent(np.cumsum(lengths) - lengths, device, torch.int64)
        self.lengths = sent(np.minimum(lengths, max_len), device, torch.int64)
        ends = self.starts[sent(lengths > max_len, device, torch.bool)] + max_len  # of those that are cut
        for place, token in enumerate(reversed(after), 1):
            self.tokens[ends - place] = token

    def rows(self, rows: Tensor, width: int, fill: int) -> tuple[Tensor, Tensor]:
        """The sequences as (R, width) tokens, and which of them are real."""
        places = torch.arange(width, device=rows.device)
        real = places < self.lengths[rows][:, None]  # (R, W)
        found = (self.starts[rows][:, None] + places).clamp(max=max(0, len(self.tokens) - 1))
        return torch.where(real, self.tokens[found].long(), fill), real
