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
from triform.data.samplers import Indices
from triform.data.token_store import TokenStore

MAX_DEVICE_TOKENS = 1 << 31  # four bytes each; larger data stays where it is
COPY_CHUNK = 1 << 24  # tokens sent at a time
PAD_ROW = -1


class BatchPlan(NamedTuple):
    """A batch on paper: its shape, its rows filled up to it, and how much is in it."""

    shape: tuple[int, ...]
    rows: Indices
    n_predictions: int  # predictions
    n_tokens: int  # real ones
    n_positions: int  # with the padding: what is computed


class DeviceDataset(Protocol):
    """A data set on the device."""

    def plan(self, indices: Indices) -> BatchPlan:
        """How these examples lie in a batch."""

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Any:
        """The batch itself; the numbers stay on the device, and nothing waits."""


def padded_batch_size(n_examples: int, width: int, train: TrainConfig) -> int:
    """Rows of a batch of n examples so wide: as many for every batch of the width, so that shapes are few."""
    return train.batch_size or max(n_examples, train.batch_tokens // width)


def pad_indices(indices: Indices, n_rows: int) -> Indices:
    """Row numbers, with as much filling as is missing."""
    return np.concatenate([indices, np.full(n_rows - len(indices), PAD_ROW)])


def fits_on_device(*stores: TokenStore) -> bool:
    return sum(store.n_tokens for store in stores) <= MAX_DEVICE_TOKENS


def copy_to_device(array: Any, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """An array on the device, a part at a time: it may be mapped from disk."""
    result = torch.empty(len(array), dtype=dtype, device=device)
    for start in range(0, len(array), COPY_CHUNK):
        chunk = np.asarray(array[start : start + COPY_CHUNK], dtype=np.int64)
        result[start : start + len(chunk)] = torch.from_numpy(chunk).to(device, dtype)
    return result


class DeviceSequences:
    """A store of sequences on the device, each cut at a length; what belongs after it stays."""

    def __init__(self, store: TokenStore, max_len: int, device: torch.device, suffix: tuple[int, ...] = ()) -> None:
        lengths = store.lengths
        self.tokens = copy_to_device(store.tokens, device)
        self.starts = copy_to_device(np.cumsum(lengths) - lengths, device, torch.int64)
        self.lengths = copy_to_device(np.minimum(lengths, max_len), device, torch.int64)
        truncated_ends = (
            self.starts[copy_to_device(lengths > max_len, device, torch.bool)] + max_len
        )  # of those that are cut
        for offset, token in enumerate(reversed(suffix), 1):
            self.tokens[truncated_ends - offset] = token

    def gather(self, rows: Tensor, width: int, pad_token: int) -> tuple[Tensor, Tensor]:
        """The sequences as (R, width) tokens, and which of them are real."""
        columns = torch.arange(width, device=rows.device)
        keep = columns < self.lengths[rows][:, None]  # (R, W)
        indices = (self.starts[rows][:, None] + columns).clamp(max=max(0, len(self.tokens) - 1))
        return torch.where(keep, self.tokens[indices].long(), pad_token), keep
