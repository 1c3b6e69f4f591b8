"""Encoded texts with their labels: in batches, on a device, kept between runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import TrainConfig
from triform.data.readers import LabelledText
from triform.data.samplers import Indices, round_up_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation.metrics import Labels
from triform.nn.layouts import pad
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.device_data import (
    PAD_ROW,
    BatchPlan,
    DeviceSequences,
    fits_on_device,
    pad_indices,
    padded_batch_size,
)
from triform.tasks.task import Batch, BucketedDataset, iter_chunks
from triform.text import DEFAULT_SPECIAL_TOKENS, SpecialTokens, Tokenizer, TokenRows, encode_stream


@dataclass(frozen=True, kw_only=True)
class ClassificationBatch(Batch):
    tokens: Tensor  # (B, T)
    keep: Tensor | None  # (B, T), None where nothing is padded
    labels: Tensor  # (B)


class ClassificationDataset(BucketedDataset):
    """Encoded texts with label numbers; a text is cut at `max_len` when it is read, not before."""

    def __init__(
        self,
        store: TokenStore,
        labels: Labels,
        max_len: int,
        versions: int = 1,
        special: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    ) -> None:
        self.store, self.labels, self.max_len, self.versions = store, labels, max_len, versions
        self.special = special
        self.lengths = np.minimum(store.lengths, max_len)

    def batch(self, indices: Indices) -> ClassificationBatch:
        tokens, keep = pad([self.truncated_row(index) for index in indices.tolist()], fill=self.special.pad_or_zero)
        return ClassificationBatch(
            tokens=tokens,
            keep=keep,
            labels=torch.from_numpy(self.labels[indices]),
            n_predictions=len(indices),
            n_tokens=int(self.lengths[indices].sum()),
            n_positions=tokens.numel(),
        )

    def truncated_row(self, index: int) -> NDArray[Any]:
        """The tokens of one text, as many as the model reads."""
        return self.special.truncate(self.store[index], self.max_len)

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceClassificationDataset | None:
        return DeviceClassificationDataset(self, device, train) if fits_on_device(self.store) else None

    def count_truncated(self) -> int:
        return int((self.store.lengths[: len(self)] > self.max_len).sum())


class DeviceClassificationDataset:
    """The same on a device."""

    def __init__(self, dataset: ClassificationDataset, device: torch.device, train: TrainConfig) -> None:
        self.lengths, self.max_len, self.train = dataset.lengths, dataset.max_len, train
        self.pad_token = dataset.special.pad_or_zero
        self.texts = DeviceSequences(dataset.store, dataset.max_len, device, dataset.special.after)
        self.labels = torch.from_numpy(dataset.labels).to(device)

    def plan(self, indices: Indices) -> BatchPlan:
        lengths = self.lengths[indices]
        width = round_up_length(int(lengths.max()), self.max_len)
        n_rows = padded_batch_size(len(indices), width, self.train)
        return BatchPlan(
            (n_rows, width), pad_indices(indices, n_rows), len(indices), int(lengths.sum()), n_rows * width
        )

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> ClassificationBatch:
        valid, rows = rows != PAD_ROW, rows.clamp(min=0)
        tokens, keep = self.texts.gather(rows, shape[1], self.pad_token)
        return ClassificationBatch(
            tokens=tokens, keep=keep, labels=torch.where(valid, self.labels[rows], IGNORE_INDEX)
        )


def encode_rows(
    rows: Callable[[], Iterator[LabelledText]],
    name: str,
    label_ids: dict[str, int],
    tokenizers: Sequence[Tokenizer],
    *,
    path: Path | None = None,
) -> tuple[TokenStore, Labels]:
    """Rows as tokens and label numbers, once for each tokenizer; with a path the tokens go straight to disk."""
    labels: list[int] = []

    def texts() -> Iterator[str]:
        for row in rows():
            if row.label not in label_ids:
                raise DataError(
                    f"label {row.label!r} was never seen in training; known are {', '.join(label_ids)}",
                    path=name,
                    line=row.line,
                )
            labels.append(label_ids[row.label])
            yield row.text

    encoded = chain.from_iterable(encode_texts(texts(), tokenizer) for tokenizer in tokenizers)
    store = TokenStore.build_from_batches(encoded, vocab_size=tokenizers[0].vocab_size, path=path)
    return store, np.array(labels, dtype=np.int64)


def encode_rows_cached(
    cache: TokenCache,
    name: str,
    rows: Callable[[], Iterator[LabelledText]],
    labels: Sequence[str],
    tokenizers: Sequence[Tokenizer],
    cache_key: object,
) -> tuple[TokenStore, Labels]:
    """The same on disk, and not again where it was done before; `what` tells the rows from others of the file."""
    label_ids = {label: label_id for label_id, label in enumerate(labels)}

    def write_files(folder: Path) -> None:
        label_array = encode_rows(rows, cache.files[0], label_ids, tokenizers, path=folder / name)[1]
        np.save(folder / f"{name}.labels.npy", label_array)

    def read_files(folder: Path) -> tuple[TokenStore, Labels]:
        store, label_array = (
            TokenStore.open(folder / name),
            np.load(folder / f"{name}.labels.npy", allow_pickle=False),
        )
        if label_array.dtype != np.int64 or label_array.shape != (len(store),):
            raise ValueError(f"{name}.labels.npy does not hold a label for each text")
        return store, label_array

    return cache.open_entry(
        ["classify", name, cache_key, list(labels), tokenizers[0].to_json()], write_files, read_files
    )


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[TokenRows]:
    for rows in encode_stream(tokenizer, iter_chunks(texts, count_characters=len)):
        yield tokenizer.special_tokens.wrap_rows(rows)
