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
from triform.data.cache import TokenCache
from triform.data.loader import Indices, rung
from triform.data.readers import Pair
from triform.data.store import TokenStore
from triform.nn.rows import pad
from triform.nn.vocabulary import IGNORE
from triform.tasks.resident import FILLING, Plan, Sequences, filled, fits, n_rows_of
from triform.tasks.task import Batch, ByLength, chunks
from triform.text import BOS, EOS, PAD, Tokenizer, encode_stream


@dataclass(frozen=True, kw_only=True)
class Paired(Batch):
    source: Tensor  # (B, S)
    source_keep: Tensor | None  # (B, S)
    target: Tensor  # (B, T): begin token and target
    expected: Tensor  # (B, T): target and end token


class Pairs(ByLength):
    """Encoded pairs. `texts` are the untouched references, kept for sets that are translated and judged."""

    def __init__(
        self, source: TokenStore, target: TokenStore, max_len: int, texts: Sequence[Pair] = (), versions: int = 1
    ) -> None:
        self.source, self.target, self.max_len, self.texts = source, target, max_len, texts
        self.versions = versions
        self.source_lengths = np.minimum(source.lengths, max_len)
        self.whole = np.maximum(source.lengths, target.lengths + 1)  # uncut
        self.lengths = np.minimum(self.whole, max_len)

    def batch(self, indices: Indices) -> Paired:
        rows = indices.tolist()
        source, keep = pad([self.source[row][: self.max_len] for row in rows], fill=PAD)
        targets = [[BOS, *self.target[row].tolist(), EOS][: self.max_len + 1] for row in rows]
        target, _ = pad([tokens[:-1] for tokens in targets], fill=PAD)
        expected, _ = pad([tokens[1:] for tokens in targets], fill=IGNORE)
        weight = sum(len(tokens) - 1 for tokens in targets)
        n_tokens = weight + int(self.source_lengths[indices].sum())
        return Paired(
            source=source,
            source_keep=keep,
            target=target,
            expected=expected,
            weight=weight,
            n_tokens=n_tokens,
            n_places=source.numel() + target.numel(),
        )

    def on(self, device: torch.device, train: TrainConfig) -> ResidentPairs | None:
        return ResidentPairs(self, device, train) if fits(self.source, self.target) else None

    def too_long(self) -> int:
        return int((self.whole[: len(self)] > self.max_len).sum())


class ResidentPairs:
    """The same on a device."""

    def __init__(self, pairs: Pairs, device: torch.device, train: TrainConfig) -> None:
        self.max_len, self.train = pairs.max_len, train
        self.source_lengths = pairs.source_lengths
        self.target_lengths = np.minimum(pairs.target.lengths + 1, pairs.max_len)  # with the begin token
        self.source = Sequences(pairs.source, pairs.max_len, device)
        self.target = Sequences(pairs.target, pairs.max_len, device)

    def plan(self, indices: Indices) -> Plan:
        source, target = self.source_lengths[indices], self.target_lengths[indices]
        widths = tuple(rung(int(lengths.max()), self.max_len) for lengths in (source, target))
        if self.train.batch_tokens:
            widths = (max(widths),) * 2
        n_rows = n_rows_of(len(indices), widths[0], self.train)
        weight = int(target.sum())
        rows = filled(indices, n_rows)
        return Plan((n_rows, *widths), rows, weight, weight + int(source.sum()), n_rows * sum(widths))

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Paired:
        real, rows = rows[:, None] != FILLING, rows.clamp(min=0)
        source, keep = self.source.rows(rows, shape[1], PAD)
        written, inside = self.target.rows(rows, shape[2], PAD)  # (R, T)
        end = torch.arange(shape[2], device=rows.device) == self.target.lengths[rows][:, None]
        expected = torch.where(end, EOS, torch.where(inside, written, IGNORE))
        target = torch.cat([torch.full_like(written[:, :1], BOS), written[:, :-1]], dim=1)
        expected = torch.where(real, expected, IGNORE)
        return Paired(source=source, source_keep=keep, target=target, expected=expected)


def encode(
    pairs: Callable[[], Iterable[Pair]],
    sources: Sequence[Tokenizer],
    targets: Sequence[Tokenizer],
    folder: Path | None = None,
) -> tuple[TokenStore, TokenStore]:
    """Both sides as tokens, a reading for each tokenizer; with a folder they go straight to disk."""

    def side(which: str, tokenizers: Sequence[Tokenizer], *, never_empty: bool) -> TokenStore:
        encoded = chain.from_iterable(
            encode_stream(tokenizer, chunks(map(attrgetter(which), pairs()), characters=len))
            for tokenizer in tokenizers
        )
        rows = (part.followed_by(EOS, part.lengths == 0) for part in encoded) if never_empty else encoded
        path = folder and folder / f"train.{which}"
        return TokenStore.build_rows(rows, vocab_size=tokenizers[0].vocab_size, path=path)

    return side("source", sources, never_empty=True), side("target", targets, never_empty=False)


def encode_once(
    cache: TokenCache,
    pairs: Callable[[], Iterable[Pair]],
    sources: Sequence[Tokenizer],
    targets: Sequence[Tokenizer],
    what: object,
) -> tuple[TokenStore, TokenStore]:
    """The same on disk, and not again where it was done before; `what` tells the pairs from others of the files."""

    def make(folder: Path) -> None:
        encode(pairs, sources, targets, folder)

    made = cache.folder(["translate", what, sources[0].to_json(), targets[0].to_json()], make)
    return TokenStore.open(made / "train.source"), TokenStore.open(made / "train.target")
