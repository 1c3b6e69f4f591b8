"""Token shards as the data of a language model: text that is already tokenized, too large for one token store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.config.settings import Settings, build_config
from triform.data.encoded_text import iter_chunks
from triform.data.readers import TextChunk
from triform.data.samplers import Indices
from triform.data.shard_reader import ShardReader
from triform.data.shards import digest_tokenizer
from triform.data.shuffled_windows import ShuffledWindowSampler
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import CheckpointError, DataError
from triform.evaluation.loss_details import TokenCounts
from triform.tasks.batch import Dataset
from triform.tasks.data import EncodedExamples, TokenizerVersions
from triform.tasks.device_data import MAX_DEVICE_TOKENS, BatchPlan, copy_to_device
from triform.tasks.language_model_data import (
    EVAL_TOKENS,
    LanguageModelBatch,
    LanguageModelData,
    LanguageModelDataset,
    build_window_batch,
    count_tokens,
    gather_device_windows,
)
from triform.text import Tokenizer, read_tokenizer

MAX_HELD_OUT_TOKENS = 1 << 22  # a validation reads 131,072 tokens, and a full evaluation should not take hours
DECODE_TOKENS = 1 << 16  # tokens that are decoded at once


class EncodedShards(EncodedExamples):
    """The training part of token shards. `values` is the number of its tokens in each shard."""

    @property
    def n_tokens(self) -> int:
        return int(self.values.sum())


class HeldOutPart(NamedTuple):
    """The tokens that are held out for validation: the end of one shard."""

    shard: int
    start: int
    stop: int


class ShardedDataset(Dataset):
    """The windows of all shards that do not overlap, numbered from 0. A window is in one shard.

    Args:
        shards: The shards.
        train_tokens: The number of tokens of each shard that belong to the dataset, from its start.
        max_len: The number of predictions of a window.
    """

    def __init__(self, shards: ShardReader, train_tokens: Sequence[int], max_len: int) -> None:
        self.shards, self.train_tokens, self.max_len = shards, np.array(train_tokens, np.int64), max_len
        self.windows_per_shard = np.maximum(0, self.train_tokens - 1) // max_len
        self.first_windows = np.cumsum(self.windows_per_shard) - self.windows_per_shard
        self.n_windows = int(self.windows_per_shard.sum())

    def __len__(self) -> int:
        """Return the number of predictions."""
        return self.n_windows * self.max_len

    def sampler(self, train: TrainConfig, seed: int) -> ShuffledWindowSampler:
        return ShuffledWindowSampler(
            self.windows_per_shard.tolist(),
            batch_size=train.batch_size or max(1, train.batch_tokens // self.max_len),
            seed=seed,
            on_pool=self.shards.prefetch,
        )

    def locate(self, windows: Indices) -> tuple[Indices, Indices]:
        """Return the shard of each window, and the number of its first token in the shard."""
        shards: Indices = np.searchsorted(self.first_windows, windows, side="right") - 1
        return shards, (windows - self.first_windows[shards]) * self.max_len

    def batch(self, indices: Indices) -> LanguageModelBatch:
        shards, starts = self.locate(indices)
        offsets = np.arange(self.max_len + 1)
        windows = np.empty((len(indices), self.max_len + 1), np.int64)
        for shard in np.unique(shards):
            rows = shards == shard
            windows[rows] = self.shards.open(int(shard)).tokens[starts[rows][:, None] + offsets]
        return build_window_batch(torch.from_numpy(windows))

    def batches(self) -> Iterator[LanguageModelBatch]:
        for chunk in iter_chunks(range(self.n_windows), max(1, EVAL_TOKENS // self.max_len)):
            yield self.batch(np.array(chunk))

    def with_lengths(self, low: int, high: int) -> ShardedDataset:
        """Return windows of `high` tokens."""
        return ShardedDataset(self.shards, self.train_tokens.tolist(), high)

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceShardedDataset | None:
        return DeviceShardedDataset(self, device) if self.shards.manifest.n_tokens <= MAX_DEVICE_TOKENS else None


class DeviceShardedDataset:
    """The tokens of all shards on a device, one shard after the other."""

    def __init__(self, dataset: ShardedDataset, device: torch.device) -> None:
        self.dataset, self.width = dataset, dataset.max_len
        n_tokens = np.array([shard.tokens for shard in dataset.shards.manifest.shards], np.int64)
        self.shard_starts = np.cumsum(n_tokens) - n_tokens
        self.tokens = torch.cat(
            [copy_to_device(dataset.shards.open(index).tokens, device) for index in range(len(n_tokens))]
        )

    def plan(self, indices: Indices) -> BatchPlan:
        shards, starts = self.dataset.locate(indices)
        n_predictions = len(indices) * self.width
        rows: Indices = self.shard_starts[shards] + starts
        return BatchPlan((len(indices), self.width), rows, n_predictions, n_predictions, n_predictions)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> LanguageModelBatch:
        return gather_device_windows(self.tokens, rows, shape[1])


class ShardedTextData(LanguageModelData):
    """The data of a language model that is trained on token shards. Their tokenizer is that of the model."""

    @cached_property
    def shards(self) -> ShardReader:
        """The token shards of `data.train`."""
        return ShardReader(self.config.data.train)

    @cached_property
    def held_out(self) -> HeldOutPart | None:
        """The part that is held out for validation: the end of the last of the largest shards."""
        data, manifest = self.config.data, self.shards.manifest
        if data.valid or not data.valid_fraction:
            return None
        sizes = [shard.tokens for shard in manifest.shards]
        shard = len(sizes) - 1 - int(np.argmax(sizes[::-1]))
        n_tokens = min(max(1, int(data.valid_fraction * manifest.n_tokens)), sizes[shard], MAX_HELD_OUT_TOKENS)
        return HeldOutPart(shard, sizes[shard] - n_tokens, sizes[shard])

    @property
    def train_tokens(self) -> list[int]:
        """The number of tokens of each shard that are used for training."""
        n_tokens = [shard.tokens for shard in self.shards.manifest.shards]
        if self.held_out:
            n_tokens[self.held_out.shard] = self.held_out.start
        return n_tokens

    def split_examples(self, *, held_out: bool) -> Iterator[TextChunk]:
        """Yield the texts of a split, decoded from their tokens."""
        parts = (
            [self.held_out] if held_out else [HeldOutPart(n, 0, stop) for n, stop in enumerate(self.train_tokens)]
        )
        eos = self.shards.tokenizer.special_tokens.eos_or_bos
        for part in filter(None, parts):
            store = self.shards.open(part.shard).slice(part.start, part.stop)
            for number in range(len(store)):
                tokens = store[number]
                is_end = bool(len(tokens)) and int(tokens[-1]) == eos
                yield TextChunk(self.shards.tokenizer.decode(tokens.tolist()), is_end, number + 1)

    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        config, manifest = self.config.tokenizer, self.shards.manifest
        settings: Settings = {
            "tokenizer.kind": manifest.tokenizer_kind,
            "tokenizer.vocab_size": manifest.vocab_size,
        }
        for name, value in settings.items():
            requested = getattr(config, name.partition(".")[2])
            if requested not in ("auto", 0, value):
                cache.notices.append(f"{name}={requested} is not used: {self.training_name} has {value}")
        return replace(self, config=build_config(settings, self.config)), [manifest.text_bytes]

    def train_or_load_tokenizers(self, cache: TokenCache, n_characters: list[int]) -> tuple[Tokenizer, ...]:
        file = self.config.tokenizer.file
        return (read_tokenizer(file) if file else self.shards.tokenizer,)

    def encode_split(
        self, split: str, versions: TokenizerVersions, cache: TokenCache | None = None
    ) -> EncodedExamples:
        """Return the training part, whose tokens must be those of the model's tokenizer."""
        ((tokenizer,),) = versions
        if digest_tokenizer(tokenizer) != self.shards.manifest.tokenizer_sha256:
            raise CheckpointError(
                f"{self.training_name} was made with another tokenizer than that of the model; "
                "use `triform data tokenize` with --tokenizer RUN to make shards for the model of a run"
            )
        return EncodedShards((), np.array(self.train_tokens, np.int64))

    def build_training_dataset(self, encoded: EncodedExamples, notices: list[str], versions: int) -> ShardedDataset:
        data = self.config.data
        dataset = ShardedDataset(self.shards, self.train_tokens, data.train_max_len or data.max_len)
        if not dataset.n_windows:
            raise DataError(
                f"no shard has the {dataset.max_len + 1} tokens of a window; "
                "lower data.max_len, or make larger shards with --shard-tokens",
                path=self.training_name,
            )
        return dataset

    def load_validation_dataset(
        self, notices: list[str], folder: Path | None = None
    ) -> LanguageModelDataset | None:
        if self.validation_name:
            return self.load_dataset(self.validation_name, notices)
        return self._load_part(self.held_out, notices) if self.held_out else None

    def load_training_sample(self, n: int, n_train: int, cache: TokenCache) -> LanguageModelDataset:
        """Return the first `n` windows of the first shard; -1: all of it, but at most `MAX_HELD_OUT_TOKENS`."""
        n_tokens = n * self.config.data.max_len + 1 if n > 0 else MAX_HELD_OUT_TOKENS
        return self._load_part(HeldOutPart(0, 0, min(n_tokens, self.train_tokens[0], MAX_HELD_OUT_TOKENS)), [])

    def _load_part(self, part: HeldOutPart, notices: list[str]) -> LanguageModelDataset:
        store = self.shards.open(part.shard).slice(part.start, part.stop)
        n_bytes = sum(
            len(self.shards.tokenizer.decode(store.tokens[start : start + DECODE_TOKENS].tolist()).encode())
            for start in range(0, store.n_tokens, DECODE_TOKENS)
        )
        copied = TokenStore(np.array(store.tokens), np.array(store.offsets))  # the shard itself may be closed
        encoded = EncodedExamples((copied,), np.array([n_bytes]))
        return self.build_eval_dataset(self.training_name, encoded, notices)

    def count_training_tokens(self) -> TokenCounts:
        parts = (
            self.shards.open(index).tokens[start : min(start + DECODE_TOKENS, stop)]
            for index, stop in enumerate(self.train_tokens)
            for start in range(0, stop, DECODE_TOKENS)
        )
        return count_tokens(parts, self.shards.manifest.vocab_size)

    def find_leaks(self, folder: Path) -> list[str]:
        return []  # shards have no texts to compare
