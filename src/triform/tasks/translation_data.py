"""Encoded pairs: in batches, on a device, kept between runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.data.readers import TextPair
from triform.data.samplers import Indices, round_up_length
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
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
from triform.text import DEFAULT_SPECIAL_TOKENS, SpecialTokens, Tokenizer, encode_stream


@dataclass(frozen=True, kw_only=True)
class TranslationBatch(Batch):
    source: Tensor  # (B, S)
    source_keep: Tensor | None  # (B, S)
    decoder_input: Tensor  # (B, T): begin token and target
    targets: Tensor  # (B, T): target and end token


class TranslationDataset(BucketedDataset):
    """Encoded pairs. `texts` are the untouched references, kept for sets that are translated and judged."""

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
        self.full_lengths = np.maximum(source.lengths, target.lengths + 1)  # uncut
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

    def count_truncated(self) -> int:
        return int((self.full_lengths[: len(self)] > self.max_len).sum())


class DeviceTranslationDataset:
    """The same on a device."""

    def __init__(self, dataset: TranslationDataset, device: torch.device, train: TrainConfig) -> None:
        self.max_len, self.train, self.special = dataset.max_len, train, dataset.special
        self.source_lengths = dataset.source_lengths
        self.target_lengths = np.minimum(dataset.target.lengths + 1, dataset.max_len)  # with the begin token
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


def encode_pairs(
    pairs: Callable[[], Iterable[TextPair]],
    source_tokenizers: Sequence[Tokenizer],
    target_tokenizers: Sequence[Tokenizer],
    folder: Path | None = None,
) -> tuple[TokenStore, TokenStore]:
    """Both sides as tokens, a reading for each tokenizer; with a folder they go straight to disk."""

    def encode_side(side_name: str, tokenizers: Sequence[Tokenizer], *, add_frame: bool) -> TokenStore:
        encoded = chain.from_iterable(
            encode_stream(tokenizer, iter_chunks(map(attrgetter(side_name), pairs()), count_characters=len))
            for tokenizer in tokenizers
        )
        rows = map(tokenizers[0].special_tokens.wrap_rows, encoded) if add_frame else encoded
        path = folder and folder / f"train.{side_name}"
        return TokenStore.build_from_batches(rows, vocab_size=tokenizers[0].vocab_size, path=path)

    return encode_side("source", source_tokenizers, add_frame=True), encode_side(
        "target", target_tokenizers, add_frame=False
    )


def encode_pairs_cached(
    cache: TokenCache,
    pairs: Callable[[], Iterable[TextPair]],
    source_tokenizers: Sequence[Tokenizer],
    target_tokenizers: Sequence[Tokenizer],
    cache_key: object,
) -> tuple[TokenStore, TokenStore]:
    """The same on disk, and not again where it was done before; `what` tells the pairs from others of the files."""

    def write_files(folder: Path) -> None:
        encode_pairs(pairs, source_tokenizers, target_tokenizers, folder)

    def read_files(folder: Path) -> tuple[TokenStore, TokenStore]:
        return TokenStore.open(folder / "train.source"), TokenStore.open(folder / "train.target")

    return cache.open_entry(
        ["translate", cache_key, source_tokenizers[0].to_json(), target_tokenizers[0].to_json()],
        write_files,
        read_files,
    )
