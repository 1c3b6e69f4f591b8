"""Texts without labels for pretraining: reading, encoding and batching, on the host and on a device."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import Config, TrainConfig
from triform.config.settings import Settings
from triform.data.files import kind_from_name
from triform.data.readers import LabelledText, TextPair, filter_lines, read_lines, read_rows
from triform.data.samplers import Indices, round_up_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.evaluation.baselines import FittedBaselines
from triform.nn.layouts import pad
from triform.tasks.batch import Batch, BucketedDataset
from triform.tasks.classification_data import default_max_len, encode_texts
from triform.tasks.data import EncodedExamples, TaskData, TokenizerVersions
from triform.tasks.device_data import (
    PAD_ROW,
    BatchPlan,
    DeviceSequences,
    copy_to_device,
    fits_on_device,
    pad_indices,
    padded_batch_size,
)
from triform.tasks.noise import count_masked
from triform.tasks.translation_data import TranslationData
from triform.text import SpecialTokens, Tokenizer

MAX_DEFAULT_LEN = 512  # tokens


def read_texts(name: str, config: Config) -> Iterator[LabelledText]:
    """Yield the texts of a file that are not empty: lines, or the text column of a table. Labels are ignored.

    A file with an unknown suffix, such as train.en, is read as lines.
    """
    rows = read_rows(name, config.data, labelled=False)
    if Path(name).is_file() and kind_from_name(name) is None:
        rows = (LabelledText(text, "", line) for line, text in read_lines(name))
    return (row for row in rows if row.text.strip())


def no_baseline_error(config: Config) -> ConfigError:
    """Return the error for a baseline of a pretrained model."""
    return ConfigError(f"there is no baseline for train.objective={config.train.objective}")


@dataclass(frozen=True, kw_only=True)
class MaskedTextBatch(Batch):
    """A batch of texts, and how many of their tokens are masked. The loss masks them."""

    tokens: Tensor  # (B, T)
    keep: Tensor | None  # (B, T); None if there is no padding
    n_masked: Tensor  # (B)


class MaskedTextDataset(BucketedDataset):
    """Encoded texts. Texts longer than `max_len` tokens are split into parts of similar length."""

    def __init__(self, store: TokenStore, max_len: int, special: SpecialTokens, mask_rate: float) -> None:
        self.store, self.max_len, self.special, self.mask_rate = (
            split_rows(store, max_len),
            max_len,
            special,
            mask_rate,
        )
        self.lengths = self.store.lengths
        self.n_masked = count_masked(self.lengths, mask_rate, special)

    def batch(self, indices: Indices) -> MaskedTextBatch:
        tokens, keep = pad([self.store[row] for row in indices.tolist()], fill=self.special.pad_or_zero)
        return MaskedTextBatch(
            tokens=tokens,
            keep=keep,
            n_masked=torch.from_numpy(self.n_masked[indices]),
            n_predictions=int(self.n_masked[indices].sum()),
            n_tokens=int(self.lengths[indices].sum()),
            n_positions=tokens.numel(),
        )

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceMaskedTextDataset | None:
        return DeviceMaskedTextDataset(self, device, train) if fits_on_device(self.store) else None

    @property
    def full_lengths(self) -> Indices:
        return self.lengths

    def select(self, rows: NDArray[np.bool_]) -> MaskedTextDataset:
        return MaskedTextDataset(self.store.select(rows), self.max_len, self.special, self.mask_rate)


class DeviceMaskedTextDataset:
    """A dataset of texts on a device, where batches are gathered from row indices."""

    def __init__(self, dataset: MaskedTextDataset, device: torch.device, train: TrainConfig) -> None:
        self.dataset, self.train = dataset, train
        self.texts = DeviceSequences(dataset.store, dataset.max_len, device)
        self.n_masked = copy_to_device(dataset.n_masked, device, torch.int64)

    def plan(self, indices: Indices) -> BatchPlan:
        data = self.dataset
        lengths = data.lengths[indices]
        width = round_up_length(int(lengths.max()), data.max_len)
        n_rows = padded_batch_size(len(indices), width, self.train)
        n_predictions = int(data.n_masked[indices].sum())
        rows = pad_indices(indices, n_rows)
        return BatchPlan((n_rows, width), rows, n_predictions, int(lengths.sum()), n_rows * width)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> MaskedTextBatch:
        valid, rows = rows != PAD_ROW, rows.clamp(min=0)
        tokens, keep = self.texts.gather(rows, shape[1], self.dataset.special.pad_or_zero)
        return MaskedTextBatch(tokens=tokens, keep=keep, n_masked=torch.where(valid, self.n_masked[rows], 0))


def split_rows(store: TokenStore, max_len: int) -> TokenStore:
    """Return a store in which every row of more than `max_len` tokens is split into parts of similar length.

    >>> split_rows(TokenStore(np.arange(9), np.array([0, 2, 9])), 4).lengths.tolist()
    [2, 3, 4]
    """
    if not len(store) or store.lengths.max() <= max_len:
        return store
    ends = [
        np.linspace(start, stop, -(-(stop - start) // max_len) + 1).astype(np.int64)[1:]
        for start, stop in zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True)
    ]
    return TokenStore(store.tokens, np.concatenate([store.offsets[:1], *ends]))


class MaskedTextData(TaskData):
    """The data of `train.objective=masked`: reads and encodes texts."""

    def read_examples(self, name: str) -> Iterator[LabelledText]:
        return read_texts(name, self.config)

    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        def count_characters() -> int:
            return sum(len(row.text) for row in self.training_examples())

        n_characters = cache.get_or_compute(["texts", self.cache_key], count_characters)
        if not n_characters:
            raise DataError("no texts to train on", path=self.training_name)
        return self, [n_characters]

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
        (tokenizers,) = versions
        rows = chain.from_iterable(
            encode_texts((row.text for row in examples()), tokenizer) for tokenizer in tokenizers
        )
        store = TokenStore.build_from_batches(rows, vocab_size=tokenizers[0].vocab_size, path=path)
        return EncodedExamples((store,), np.empty(0, dtype=np.int64))

    def build_dataset(
        self, name: str, encoded: EncodedExamples, notices: list[str], *, versions: int = 1
    ) -> MaskedTextDataset:
        (store,), special = encoded.stores, self.tokenizers[0].special_tokens
        if not len(store):
            raise DataError("no texts to evaluate on; use another file, or raise data.valid_fraction", path=name)
        return MaskedTextDataset(store, self.config.data.max_len, special, self.config.train.mask_rate)

    def load_dataset(self, name: str, notices: list[str], lines: Container[int] | None = None) -> MaskedTextDataset:
        rows = filter_lines(self.read_examples(name), lines)
        return self.build_dataset(name, self.encode(name, lambda: rows, [self.tokenizers]), notices)

    def describe(self, encoded: EncodedExamples, n_versions: int) -> list[str]:
        n_texts = len(encoded.stores[0]) // n_versions
        return [f"{self.training_name}: {n_texts:,} texts to train on"]

    def find_leaks(self, folder: Path) -> list[str]:
        return []  # the task that starts from the run has validation data of its own

    def fit_baselines(self) -> FittedBaselines:
        raise no_baseline_error(self.config)


class DenoisingData(TranslationData):
    """The data of `train.objective=denoise`: each text is both source and target."""

    def read_examples(self, name: str) -> Iterator[TextPair]:
        return (TextPair(row.text, row.text, row.line) for row in read_texts(name, self.config))

    def with_resolved_names(self) -> Self:
        return replace(self, config=TaskData.with_resolved_names(self).config)

    def find_leaks(self, folder: Path) -> list[str]:
        return []

    def fit_baselines(self) -> FittedBaselines:
        raise no_baseline_error(self.config)
