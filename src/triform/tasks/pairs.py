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
from triform.text import OWN, Special, Tokenizer, encode_stream


@dataclass(frozen=True, kw_only=True)
class Paired(Batch):
    source: Tensor  # (B, S)
    source_keep: Tensor | None  # (B, S)
    target: Tensor  # (B, T): begin token and target
    expected: Tensor  # (B, T): target and end token


class Pairs(ByLength):
    """Encoded pairs. `texts` are the untouched references, kept for sets that are translated and judged."""

    def __init__(
        self, source: TokenStore, target: TokenStore, max_len: int, texts: Sequence[Pair] = (), versions: int = 1,
        special: tuple[Special, Special] = (OWN, OWN),
    ) -> None:  # fmt: skip
        self.source, self.target, self.max_len, self.texts = source, target, max_len, texts
        self.versions, self.special = versions, special
        self.source_lengths = np.minimum(source.lengths, max_len)
        self.whole = np.maximum(source.lengths, target.lengths + 1)  # uncut
        self.lengths = np.minimum(self.whole, max_len)

    def batch(self, indices: Indices) -> Paired:
        rows = indices.tolist()
        read, written = self.special
        source, keep = pad([read.cut(self.source[row], self.max_len) for row in rows], fill=read.filling)
        targets = [[written.start, *self.target[row].tolist(), written.blank][: self.max_len + 1] for row in rows]
        target, _ = pad([tokens[:-1] for tokens in targets], fill=written.filling)
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
        self.max_len, self.train, self.special = pairs.max_len, train, pairs.special
        self.source_lengths = pairs.source_lengths
        self.target_lengths = np.minimum(pairs.target.lengths + 1, pairs.max_len)  # with the begin token
        self.source = Sequences(pairs.source, pairs.max_len, device, pairs.special[0].after)
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
        read, wrote = self.special
        source, keep = self.source.rows(rows, shape[1], read.filling)
        written, inside = self.target.rows(rows, shape[2], wrote.filling)  # (R, T)
        end = torch.arange(shape[2], device=rows.device) == self.target.lengths[rows][:, None]
        expected = torch.where(end, wrote.blank, torch.where(inside, written, IGNORE))
        target = torch.cat([torch.full_like(written[:, :1], wrote.start), written[:, :-1]], dim=1)
        expected = torch.where(real, expected, IGNORE)
        return Paired(source=source, source_keep=keep, target=target, expected=expected)


def encode(
    pairs: Callable[[], Iterable[Pair]],
    sources: Sequence[Tokenizer],
    targets: Sequence[Tokenizer],
    folder: Path | None = None,
) -> tuple[TokenStore, TokenStore]:
    """Both sides as tokens, a reading for each tokenizer; with a folder they go straight to disk."""

    def side(which: str, tokenizers: Sequence[Tokenizer], *, is_read: bool) -> TokenStore:
        encoded = chain.from_iterable(
            encode_stream(tokenizer, chunks(map(attrgetter(which), pairs()), characters=len))
            for tokenizer in tokenizers
        )
        rows = map(tokenizers[0].special.framed, encoded) if is_read else encoded
        path = folder and folder / f"train.{which}"
        return TokenStore.build_rows(rows, vocab_size=tokenizers[0].vocab_size, path=path)

    return side("source", sources, is_read=True), side("target", targets, is_read=False)


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

    def read(folder: Path) -> tuple[TokenStore, TokenStore]:
        return TokenStore.open(folder / "train.source"), TokenStore.open(folder / "train.target")

    return cache.open(["translate", what, sources[0].to_json(), targets[0].to_json()], make, read)
