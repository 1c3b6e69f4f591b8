"""Datasets on a device: each step sends only row indices, and the device gathers the batch.

Widths and numbers of rows are rounded up, so that gathered batches have few different shapes and a CUDA graph can
be replayed for every batch of its shape. Row index -1 is padding and does not contribute to the loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.data.samplers import Indices
from triform.data.token_store import TokenStore

MAX_DEVICE_TOKENS = 1 << 31  # four bytes each; larger data stays on the host
COPY_CHUNK = 1 << 24  # tokens copied at a time
PAD_ROW = -1


class BatchPlan(NamedTuple):
    """A batch before it is gathered: its shape, its row indices with padding, and its counts."""

    shape: tuple[int, ...]
    rows: Indices
    n_predictions: int
    n_tokens: int  # without padding
    n_positions: int  # with padding


class DeviceDataset(Protocol):
    """The interface of datasets on a device."""

    def plan(self, indices: Indices) -> BatchPlan:
        """Return the plan of a batch of these examples."""

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Any:
        """Return the batch of a plan. Nothing is copied to the host, so this does not wait for the device."""


def padded_batch_size(n_examples: int, width: int, train: TrainConfig) -> int:
    """Return the number of rows of a batch, equal for all batches of a width, so that there are few shapes."""
    return train.batch_size or max(n_examples, train.batch_tokens // width)


def pad_indices(indices: Indices, n_rows: int) -> Indices:
    """Return row indices, padded with -1 to a number of rows."""
    return np.concatenate([indices, np.full(n_rows - len(indices), PAD_ROW)])


def fits_on_device(*stores: TokenStore) -> bool:
    """Return whether the tokens are few enough to be kept on a device."""
    return sum(store.n_tokens for store in stores) <= MAX_DEVICE_TOKENS


def copy_to_device(array: Any, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """Copy an array, which may be memory-mapped, to the device in chunks."""
    result = torch.empty(len(array), dtype=dtype, device=device)
    for start in range(0, len(array), COPY_CHUNK):
        chunk = np.asarray(array[start : start + COPY_CHUNK], dtype=np.int64)
        result[start : start + len(chunk)] = torch.from_numpy(chunk).to(device, dtype)
    return result


class DeviceSequences:
    """Sequences on a device, truncated to a length. The special tokens after a text (`suffix`) are kept."""

    def __init__(self, store: TokenStore, max_len: int, device: torch.device, suffix: tuple[int, ...] = ()) -> None:
        lengths = store.lengths
        self.tokens = copy_to_device(store.tokens, device)
        self.starts = copy_to_device(np.cumsum(lengths) - lengths, device, torch.int64)
        self.lengths = copy_to_device(np.minimum(lengths, max_len), device, torch.int64)
        # The ends of texts that are truncated.
        truncated_ends = self.starts[copy_to_device(lengths > max_len, device, torch.bool)] + max_len
        for offset, token in enumerate(reversed(suffix), 1):
            self.tokens[truncated_ends - offset] = token

    def gather(self, rows: Tensor, width: int, pad_token: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of rows, (R, width), and a mask of those that are not padding."""
        columns = torch.arange(width, device=rows.device)
        keep = columns < self.lengths[rows][:, None]  # (R, W)
        indices = (self.starts[rows][:, None] + columns).clamp(max=max(0, len(self.tokens) - 1))
        return torch.where(keep, self.tokens[indices].long(), pad_token), keep
