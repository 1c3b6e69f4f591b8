"""Labelled texts for classification: reading, encoding and batching, on the host and on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import TrainConfig
from triform.config.settings import Settings, build_config
from triform.data.encoded_text import iter_chunks
from triform.data.readers import LabelledText, describe_columns, filter_lines, read_rows
from triform.data.samplers import Indices, round_up_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation.metrics import Labels
from triform.nn.layouts import pad
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.batch import Batch, BucketedDataset, Dataset
from triform.tasks.data import EncodedExamples, TaskData, TokenizerVersions
from triform.tasks.device_data import (
    PAD_ROW,
    BatchPlan,
    DeviceSequences,
    fits_on_device,
    pad_indices,
    padded_batch_size,
)
from triform.tasks.label_warnings import label_warnings
from triform.tasks.splits import validation_mask
from triform.text import DEFAULT_SPECIAL_TOKENS, SpecialTokens, Tokenizer, TokenRows, encode_stream

MAX_DEFAULT_LEN = 1_024  # tokens


@dataclass(frozen=True, kw_only=True)
class ClassificationBatch(Batch):
    """A batch of texts and their label ids."""

    tokens: Tensor  # (B, T)
    keep: Tensor | None  # (B, T); None if there is no padding
    labels: Tensor  # (B)


class ClassificationDataset(BucketedDataset):
    """Encoded texts with label ids. The store holds whole texts; batches truncate them to `max_len` tokens."""

    def __init__(
        self,
        store: TokenStore,
        labels: Labels,
        max_len: int,
        versions: int = 1,
        special: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
        *,
        keep_last: bool = False,
        rows: Indices | None = None,
    ) -> None:
        """Build a dataset. `rows` are the numbers of the texts in their file, if some of them are left out."""
        self.rows: Indices = np.arange(len(labels)) if rows is None else rows
        self.store, self.labels, self.max_len, self.versions = store, labels, max_len, versions
        self.special, self.pad_token, self.keep_last = special, special.pad_or_zero, keep_last
        self.lengths = np.minimum(store.lengths, max_len)
        self._tokens, self._offsets = (
            store.tokens,
            store.offsets,
        )  # kept as attributes because every step reads them

    def batch(self, indices: Indices) -> ClassificationBatch:
        tokens, keep = pad([self.truncated_row(index) for index in indices.tolist()], fill=self.pad_token)
        return ClassificationBatch(
            tokens=tokens,
            keep=keep,
            labels=torch.from_numpy(self.labels[indices]),
            n_predictions=len(indices),
            n_tokens=int(self.lengths[indices].sum()),
            n_positions=tokens.numel(),
        )

    def truncated_row(self, index: int) -> NDArray[Any]:
        """Return the tokens of one text, truncated to what the model reads."""
        row = self._tokens[self._offsets[index] : self._offsets[index + 1]]
        return (
            row if len(row) <= self.max_len else self.special.truncate(row, self.max_len, keep_last=self.keep_last)
        )

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceClassificationDataset | None:
        return DeviceClassificationDataset(self, device, train) if fits_on_device(self.store) else None

    @property
    def full_lengths(self) -> Indices:
        return self.store.lengths

    def select(self, rows: NDArray[np.bool_]) -> ClassificationDataset:
        rows = np.tile(rows, self.versions)
        store, labels, keep_last = self.store.select(rows), self.labels[rows], self.keep_last
        return ClassificationDataset(
            store, labels, self.max_len, self.versions, self.special, keep_last=keep_last, rows=self.rows[rows]
        )

    def count_truncated(self) -> int:
        """Return the number of texts that batches truncate."""
        return int((self.full_lengths[: len(self)] > self.max_len).sum())


class DeviceClassificationDataset:
    """A classification dataset on a device, where batches are gathered from row indices."""

    def __init__(self, dataset: ClassificationDataset, device: torch.device, train: TrainConfig) -> None:
        self.lengths, self.max_len, self.train = dataset.lengths, dataset.max_len, train
        self.pad_token = dataset.pad_token
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


class ClassificationData(TaskData):
    """The data of a classifier: reads and encodes labelled texts."""

    @property
    def label_ids(self) -> dict[str, int]:
        """The id of each label."""
        return {label: index for index, label in enumerate(self.config.data.labels)}

    def read_examples(self, name: str) -> Iterator[LabelledText]:
        return read_rows(name, self.config.data)

    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        key = ["labels", self.cache_key, self.config.data.labels]
        labels, n_characters = cache.get_or_compute(key, self._scan_labels)
        return replace(self, config=build_config({"data.labels": tuple(labels)}, self.config)), [n_characters]

    def _scan_labels(self) -> tuple[Sequence[str], int]:
        """Return the labels of the training file, sorted, and the number of characters to train on."""
        labels: set[str] = set()
        n_characters = 0
        mask = validation_mask(0.0 if self.validation_name else self.config.data.valid_fraction)
        for row, is_held_out in zip(self.read_examples(self.training_name), mask, strict=False):
            labels.add(row.label)  # including a rare label whose rows are all in the validation data
            n_characters += 0 if is_held_out else len(row.text)
        for row in self.extra_examples():
            labels.add(row.label)
            n_characters += len(row.text)
        if len(labels) < 2 and not self.config.data.labels:
            problem = f"only one label, {next(iter(labels))!r}" if labels else "no rows to train on"
            raise DataError(f"found {problem}; a classifier needs at least two labels", path=self.training_name)
        return self.config.data.labels or tuple(sorted(labels, key=_label_sort_key)), n_characters

    def settings_from(self, encoded: EncodedExamples, tokenizers: tuple[Tokenizer, ...]) -> Settings:
        max_len = self.config.data.max_len or default_max_len(encoded.stores[0], MAX_DEFAULT_LEN)
        return {"data.max_len": max_len, "tokenizer.vocab_size": tokenizers[0].vocab_size}

    def encode(
        self,
        name: str,
        examples: Callable[[], Iterator[LabelledText]],
        versions: TokenizerVersions,
        path: Path | None = None,
    ) -> EncodedExamples:
        labels: list[int] = []
        label_ids = self.label_ids

        def texts() -> Iterator[str]:
            for row in examples():
                if row.label not in label_ids:
                    raise DataError(
                        f"label {row.label!r} is not in the training data; its labels are {', '.join(label_ids)}",
                        path=name,
                        line=row.line,
                    )
                labels.append(label_ids[row.label])
                yield row.text

        (tokenizers,) = versions
        encoded = chain.from_iterable(encode_texts(texts(), tokenizer) for tokenizer in tokenizers)
        store = TokenStore.build_from_batches(encoded, vocab_size=tokenizers[0].vocab_size, path=path)
        return EncodedExamples((store,), np.array(labels, dtype=np.int64))

    def values_shape(self, stores: Sequence[TokenStore]) -> tuple[int, ...]:
        return (len(stores[0]),)

    def build_dataset(
        self, name: str, encoded: EncodedExamples, notices: list[str], *, versions: int = 1
    ) -> ClassificationDataset:
        (store,), labels = encoded
        special = self.tokenizers[0].special_tokens
        dataset = ClassificationDataset(store, labels, self.config.data.max_len, versions, special)
        if not len(dataset):
            raise DataError(
                "no rows are left for validation; use --valid FILE, or raise data.valid_fraction", path=name
            )
        if n_truncated := dataset.count_truncated():
            notices.append(
                f"{name}: {n_truncated} of {len(dataset)} texts were truncated to {dataset.max_len} tokens "
                "(data.max_len)"
            )
        return dataset

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> ClassificationDataset:
        rows = filter_lines(self.read_examples(name), lines)
        encoded = self.encode(name, lambda: rows, [self.tokenizers])
        if not len(encoded.stores[0]):
            raise DataError("no rows to evaluate on", path=name)
        return self.build_dataset(name, encoded, notices)

    def describe(self, encoded: EncodedExamples, n_versions: int) -> list[str]:
        name, labels = self.training_name, self.config.data.labels
        columns = describe_columns(name, self.config.data)
        label_list = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        n_texts = len(encoded.values) // n_versions
        counts = f"{name}: {n_texts:,} texts to train on, {len(labels)} labels: {label_list}"
        return [*([f"{name}: {columns}"] if columns else []), counts]

    def find_problems(self, train: Dataset, valid: Dataset | None, folder: Path) -> list[str]:
        assert isinstance(train, ClassificationDataset)
        valid_labels = valid.labels if isinstance(valid, ClassificationDataset) else None
        warnings = label_warnings(self.training_name, self.config.data.labels, train.labels, valid_labels)
        return [*warnings, *super().find_problems(train, valid, folder)]


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[TokenRows]:
    """Yield texts as tokens with special tokens around them, many texts at a time."""
    for rows in encode_stream(tokenizer, iter_chunks(texts, count_characters=len)):
        yield tokenizer.special_tokens.wrap_rows(rows)


def _label_sort_key(label: str) -> tuple[float, str]:
    """Return a sort key that puts numbers first, ordered by value."""
    try:
        value = float(label)
    except ValueError:
        value = math.inf
    return (value if math.isfinite(value) else math.inf), label


def default_max_len(store: TokenStore, limit: int) -> int:
    """Return a length that fits all texts if they are short, else 95 % of them, and at most `limit` tokens."""
    longest = int(store.lengths.max())
    return max(16, longest) if longest <= 256 else min(limit, int(np.ceil(np.quantile(store.lengths, 0.95))))
