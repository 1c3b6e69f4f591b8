"""Sentence pairs for translation: reading, encoding and batching, on the host and on a device."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.config import TrainConfig
from triform.config.settings import Settings, build_config
from triform.data import builtin_sets
from triform.data.encoded_text import iter_chunks
from triform.data.readers import TextPair, filter_lines, read_pairs_or_aligned
from triform.data.samplers import Indices, round_up_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import ConfigError, DataError
from triform.nn.layouts import pad
from triform.nn.loss import IGNORE_INDEX
from triform.tasks.batch import Batch, BucketedDataset
from triform.tasks.data import EncodedExamples, TaskData, TokenizerVersions
from triform.tasks.device_data import (
    PAD_ROW,
    BatchPlan,
    DeviceSequences,
    fits_on_device,
    pad_indices,
    padded_batch_size,
)
from triform.tasks.learned_tokenizers import has_two_tokenizers, train_or_load_tokenizer
from triform.text import DEFAULT_SPECIAL_TOKENS, SpecialTokens, Tokenizer, encode_stream
from triform.text.exporting import Side


@dataclass(frozen=True, kw_only=True)
class TranslationBatch(Batch):
    """A batch of sources, decoder inputs and targets."""

    source: Tensor  # (B, S)
    source_keep: Tensor | None  # (B, S)
    decoder_input: Tensor  # (B, T): start token and target
    targets: Tensor  # (B, T): target and end token


class TranslationDataset(BucketedDataset):
    """Encoded pairs. Datasets to evaluate on also keep the pairs as text, for BLEU and chrF."""

    def __init__(
        self,
        source: TokenStore,
        target: TokenStore,
        max_len: int,
        raw_pairs: Sequence[TextPair] = (),
        versions: int = 1,
        special: tuple[SpecialTokens, SpecialTokens] = (DEFAULT_SPECIAL_TOKENS, DEFAULT_SPECIAL_TOKENS),
    ) -> None:
        self.source, self.target, self.max_len, self.raw_pairs = source, target, max_len, raw_pairs
        self.versions, self.special = versions, special
        self.source_lengths = np.minimum(source.lengths, max_len)
        self.lengths = np.minimum(self.full_lengths, max_len)

    def batch(self, indices: Indices) -> TranslationBatch:
        rows = indices.tolist()
        source_special, target_special = self.special
        source, keep = pad(
            [source_special.truncate(self.source[row], self.max_len) for row in rows],
            fill=source_special.pad_or_zero,
        )
        framed_targets = [
            [target_special.start_token, *self.target[row].tolist(), target_special.end_token][: self.max_len + 1]
            for row in rows
        ]
        decoder_input, _ = pad([tokens[:-1] for tokens in framed_targets], fill=target_special.pad_or_zero)
        target_tokens, _ = pad([tokens[1:] for tokens in framed_targets], fill=IGNORE_INDEX)
        n_predictions = sum(len(tokens) - 1 for tokens in framed_targets)
        n_tokens = n_predictions + int(self.source_lengths[indices].sum())
        return TranslationBatch(
            source=source,
            source_keep=keep,
            decoder_input=decoder_input,
            targets=target_tokens,
            n_predictions=n_predictions,
            n_tokens=n_tokens,
            n_positions=source.numel() + decoder_input.numel(),
        )

    def to_device(self, device: torch.device, train: TrainConfig) -> DeviceTranslationDataset | None:
        return DeviceTranslationDataset(self, device, train) if fits_on_device(self.source, self.target) else None

    @cached_property
    def full_lengths(self) -> Indices:
        return np.maximum(self.source.lengths, self.target.lengths + 1)

    def select(self, rows: NDArray[np.bool_]) -> TranslationDataset:
        raw_pairs = list(compress(self.raw_pairs, rows))
        source, target = (store.select(np.tile(rows, self.versions)) for store in (self.source, self.target))
        return TranslationDataset(source, target, self.max_len, raw_pairs, self.versions, self.special)

    def count_padding(self, batch_size: int) -> int:
        """Return how many target positions are padding if the pairs are shuffled and put into batches.

        Some reports count them as correct predictions: a model that is trained on padding predicts it without fail.
        """
        lengths = np.minimum(self.target.lengths + 1, self.max_len)  # with the end token
        shuffled = np.random.default_rng(0).permutation(lengths)
        starts = np.arange(0, len(shuffled), batch_size)
        batch_rows = np.diff(np.append(starts, len(shuffled)))
        return int((np.maximum.reduceat(shuffled, starts) * batch_rows).sum() - lengths.sum())

    def count_truncated(self) -> int:
        """Return the number of pairs that batches truncate."""
        return int((self.full_lengths[: len(self)] > self.max_len).sum())


class DeviceTranslationDataset:
    """A translation dataset on a device, where batches are gathered from row indices."""

    def __init__(self, dataset: TranslationDataset, device: torch.device, train: TrainConfig) -> None:
        self.max_len, self.train, self.special = dataset.max_len, train, dataset.special
        self.source_lengths = dataset.source_lengths
        self.target_lengths = np.minimum(dataset.target.lengths + 1, dataset.max_len)  # with the start token
        self.source = DeviceSequences(dataset.source, dataset.max_len, device, dataset.special[0].after)
        self.target = DeviceSequences(dataset.target, dataset.max_len, device)

    def plan(self, indices: Indices) -> BatchPlan:
        source_lengths, target_lengths = self.source_lengths[indices], self.target_lengths[indices]
        widths = tuple(
            round_up_length(int(lengths.max()), self.max_len) for lengths in (source_lengths, target_lengths)
        )
        if self.train.batch_tokens:
            widths = (max(widths),) * 2
        n_rows = padded_batch_size(len(indices), widths[0], self.train)
        n_predictions = int(target_lengths.sum())
        rows = pad_indices(indices, n_rows)
        return BatchPlan(
            (n_rows, *widths), rows, n_predictions, n_predictions + int(source_lengths.sum()), n_rows * sum(widths)
        )

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> TranslationBatch:
        valid, rows = rows[:, None] != PAD_ROW, rows.clamp(min=0)
        source_special, target_special = self.special
        source, keep = self.source.gather(rows, shape[1], source_special.pad_or_zero)
        target_tokens, target_keep = self.target.gather(rows, shape[2], target_special.pad_or_zero)  # (R, T)
        is_end = torch.arange(shape[2], device=rows.device) == self.target.lengths[rows][:, None]
        targets = torch.where(
            is_end, target_special.end_token, torch.where(target_keep, target_tokens, IGNORE_INDEX)
        )
        decoder_input = torch.cat(
            [torch.full_like(target_tokens[:, :1], target_special.start_token), target_tokens[:, :-1]], dim=1
        )
        targets = torch.where(valid, targets, IGNORE_INDEX)
        return TranslationBatch(source=source, source_keep=keep, decoder_input=decoder_input, targets=targets)


class TranslationData(TaskData):
    """The data of translation: reads and encodes sentence pairs from one file or two aligned files."""

    store_names = (".source", ".target")

    def with_resolved_names(self) -> Self:
        if self.config.data.source:
            return self
        train = builtin_sets.resolve_path(self.config.data.train, "translate")
        settings: Settings = {"data.train": train}
        if not self.validation_name:
            settings["data.valid"] = builtin_sets.validation_path(train)
        return replace(self, config=build_config(settings, self.config))

    @property
    def training_files(self) -> list[str]:
        data = self.config.data
        return [data.train] if data.train else [data.source, data.target]

    @property
    def validation_name(self) -> str:
        data = self.config.data
        return data.valid or (f"{data.valid_source},{data.valid_target}" if data.valid_source else "")

    def read_examples(self, name: str) -> Iterator[TextPair]:
        return read_pairs_or_aligned(name, self.config.data)

    def training_examples(self) -> Iterator[TextPair]:
        """Yield the training pairs. Pairs with an empty side are skipped."""
        return filter(_has_both_sides, self.split_examples(held_out=False))

    def extra_examples(self) -> Iterator[TextPair]:
        pairs, tag = super().extra_examples(), self.config.data.extra_tag
        if not tag:
            return pairs
        return (replace(pair, source=f"{tag} {pair.source}") if pair.source.strip() else pair for pair in pairs)

    def source_text(self, example: TextPair) -> str:
        return example.source

    def scan(self, cache: TokenCache) -> tuple[Self, list[int]]:
        *n_characters, n_skipped = cache.get_or_compute(["pairs", self.cache_key], self._count_characters)
        if n_skipped:
            cache.notices.append(f"{self.training_name}: {n_skipped} pairs with an empty side were skipped")
        return self, n_characters

    def _count_characters(self) -> list[int]:
        """Return the numbers of characters of sources and targets, and of pairs with an empty side."""
        n_source = n_target = n_skipped = 0
        for pair in self.split_examples(held_out=False):
            if _has_both_sides(pair):
                n_source += len(pair.source)
                n_target += len(pair.target)
            else:
                n_skipped += 1
        return [n_source, n_target, n_skipped]

    def train_or_load_tokenizers(self, cache: TokenCache, n_characters: list[int]) -> tuple[Tokenizer, Tokenizer]:
        config = self.config.tokenizer

        def train(name: str, texts: Iterator[str], n_characters: int, side: Side = "source") -> Tokenizer:
            return train_or_load_tokenizer(cache, config, [name, self.cache_key], texts, n_characters, side)

        sources = (pair.source for pair in self.training_examples())  # read only if a tokenizer is trained
        targets = (pair.target for pair in self.training_examples())
        if not config.joint_vocab:
            return train("source", sources, n_characters[0]), train("target", targets, n_characters[1], "target")
        tokenizer = train("shared", chain(sources, targets), sum(n_characters))
        if not has_two_tokenizers(config.file):
            return tokenizer, tokenizer
        target_tokenizer = train("target", targets, n_characters[1], "target")
        if tokenizer.vocabulary != target_tokenizer.vocabulary:
            raise ConfigError(f"tokenizer.file={config.file} has two vocabularies; set tokenizer.joint_vocab=false")
        return tokenizer, target_tokenizer

    def settings_from(self, encoded: EncodedExamples, tokenizers: tuple[Tokenizer, ...]) -> Settings:
        source, target = encoded.stores
        if not len(source):
            raise DataError("no pairs to train on: every pair has an empty side", path=self.training_name)
        longest = int(max(source.lengths.max(), target.lengths.max() + 1))
        settings: Settings = {"data.max_len": self.config.data.max_len or min(256, longest + 8)}
        if (
            self.config.tokenizer.joint_vocab
        ):  # separate vocabularies have different sizes, which the data determines again
            settings["tokenizer.vocab_size"] = tokenizers[0].vocab_size
        return settings

    def encode(
        self,
        name: str,
        examples: Callable[[], Iterator[TextPair]],
        versions: TokenizerVersions,
        path: Path | None = None,
    ) -> EncodedExamples:
        def encode_side(side: Side, tokenizers: Sequence[Tokenizer], *, add_frame: bool) -> TokenStore:
            encoded = chain.from_iterable(
                encode_stream(tokenizer, iter_chunks(map(attrgetter(side), examples()), count_characters=len))
                for tokenizer in tokenizers
            )
            rows = map(tokenizers[0].special_tokens.wrap_rows, encoded) if add_frame else encoded
            file = path and path.with_name(f"{path.name}.{side}")
            return TokenStore.build_from_batches(rows, vocab_size=tokenizers[0].vocab_size, path=file)

        stores = (
            encode_side("source", versions[0], add_frame=True),
            encode_side("target", versions[1], add_frame=False),
        )
        return EncodedExamples(stores, np.empty(0, dtype=np.int64))

    def build_dataset(
        self,
        name: str,
        encoded: EncodedExamples,
        notices: list[str],
        *,
        versions: int = 1,
        raw_pairs: Sequence[TextPair] = (),
    ) -> TranslationDataset:
        source, target = encoded.stores
        special = self.tokenizers[0].special_tokens, self.tokenizers[1].special_tokens
        dataset = TranslationDataset(source, target, self.config.data.max_len, raw_pairs, versions, special)
        if not len(dataset):
            raise DataError(
                "no pairs are left for validation; use a validation file, or raise data.valid_fraction", path=name
            )
        if n_truncated := dataset.count_truncated():
            notices.append(
                f"{name}: {n_truncated} of {len(dataset)} pairs were truncated to {dataset.max_len} tokens "
                "(data.max_len)"
            )
        return dataset

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> TranslationDataset:
        pairs = list(filter_lines(self.read_examples(name), lines))
        if not any(map(_has_both_sides, pairs)):
            raise DataError("no pairs with two non-empty sides to evaluate on", path=name)
        return self._build_from_pairs(name, pairs, notices)

    def load_validation_dataset(self, notices: list[str], folder: Path | None = None) -> TranslationDataset | None:
        """Read the validation pairs. They are kept as text, because they are translated, and not cached."""
        if self.validation_name:
            return self.load_dataset(self.validation_name, notices)
        if not self.config.data.valid_fraction:
            return None
        pairs = list(self.split_examples(held_out=True))
        usable = pairs if any(map(_has_both_sides, pairs)) else []
        return self._build_from_pairs(self.training_name, usable, notices)

    def build_sample(self, examples: list[TextPair]) -> TranslationDataset:
        return self._build_from_pairs(self.training_name, examples, [])

    def _build_from_pairs(self, name: str, pairs: list[TextPair], notices: list[str]) -> TranslationDataset:
        encoded = self.encode(name, lambda: iter(pairs), [[tokenizer] for tokenizer in self.tokenizers])
        return self.build_dataset(name, encoded, notices, raw_pairs=pairs)


def _has_both_sides(pair: TextPair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())
