"""Base classes of batches and datasets of encoded examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import TrainConfig
from triform.data.samplers import BucketSampler, Indices, Sampler, batch_by_length
from triform.errors import ConfigError, DataError
from triform.progress import track_progress
from triform.tasks.device_data import DeviceDataset


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The tensors of one step and their counts. A batch that is gathered on a device has counts of 0."""

    n_predictions: int = 0
    n_tokens: int = 0  # without padding
    n_positions: int = 0  # with padding

    def to(self, device: torch.device) -> Self:
        """Return the batch with its tensors on a device."""
        tensors: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


class Dataset(ABC):
    """Base class of datasets of encoded examples, which can be read in any order."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples."""

    @abstractmethod
    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        """Return a sampler that yields the indices of training batches without end."""

    @abstractmethod
    def batch(self, indices: Indices) -> Any:
        """Return these examples as a batch of tensors."""

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yield every example once, in batches for evaluation."""

    @abstractmethod
    def with_lengths(self, low: int, high: int) -> Self:
        """Return the part of the dataset that has `low` to `high` tokens: examples, or windows of running text.

        Raises:
            DataError: Nothing has this length.
        """

    @abstractmethod
    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceDataset | None:
        """Copy the examples to a device, where batches are gathered; None if there are too many."""


class BucketedDataset(Dataset):
    """Base class of datasets whose batches contain examples of similar length."""

    EVAL_TOKENS = 8_192  # tokens per evaluation batch; it affects only the speed
    lengths: Indices
    max_len: int
    versions = 1  # encodings of each example, stored one after another; see `tokenizer_versions`

    def __len__(self) -> int:
        return len(self.lengths) // self.versions

    @property
    @abstractmethod
    def full_lengths(self) -> Indices:
        """The number of tokens of each example, before it is cut to `max_len`."""

    @abstractmethod
    def select(self, rows: NDArray[np.bool_]) -> Self:
        """Return the examples whose entry in `rows` is True, in all versions."""

    def sample(self, n: int) -> Self:
        """Return at most `n` examples, evenly spaced."""
        rows = np.zeros(len(self), bool)
        rows[np.linspace(0, len(self) - 1, min(n, len(self))).astype(np.int64)] = True
        return self.select(rows)

    def with_lengths(self, low: int, high: int) -> Self:
        lengths = self.full_lengths.reshape(self.versions, len(self))
        rows = (lengths.max(axis=0) >= low) & (lengths.max(axis=0) <= high)
        if not rows.any():
            raise DataError(f"no texts have {low} to {high} tokens; the longest one has {lengths.max()}")
        return self.select(rows)

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        return BucketSampler(
            self.lengths,
            batch_size=train.batch_size,
            batch_tokens=train.batch_tokens,
            seed=seed,
            n_versions=self.versions,
            max_length=self.max_len,
        )

    def batches(self) -> Iterator[Any]:
        batches = batch_by_length(self.lengths, batch_tokens=self.EVAL_TOKENS)
        return map(self.batch, track_progress(batches, "validating", len(batches)))


def length_ranges(edges: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return ranges of lengths by name from the largest length of each range.

    >>> length_ranges([64, 128])
    {'1 to 64': (1, 64), '65 to 128': (65, 128)}
    """
    return {f"{low + 1} to {high}": (low + 1, high) for low, high in pairwise((0, *edges))}


def split_by_length(
    dataset: Dataset, edges: Sequence[int], max_len: int, path: str
) -> tuple[dict[str, Dataset], int]:
    """Return the part of a dataset in each range of `length_ranges` that is not empty.

    Returns:
        The parts by the name of the range, and the number of texts that are longer than the last edge.

    Raises:
        ConfigError: The edges are not in ascending order or are above `max_len`.
        DataError: All ranges are empty.
    """
    edges = tuple(edges)
    if not edges or any(low >= high for low, high in pairwise((0, *edges))) or edges[-1] > max_len:
        raise ConfigError(
            f"lengths {', '.join(map(str, edges)) or 'are missing; they'} must be ascending numbers "
            f"between 1 and data.max_len={max_len}"
        )
    parts: dict[str, Dataset] = {}
    for name, (low, high) in length_ranges(edges).items():
        with suppress(DataError):  # nothing has this length
            parts[name] = dataset.with_lengths(low, high)
    if not parts:
        raise DataError(f"no texts of up to {edges[-1]} tokens to evaluate on", path=path)
    n_selected = sum(map(len, parts.values()))
    return parts, len(dataset) - n_selected if isinstance(dataset, BucketedDataset) else 0
