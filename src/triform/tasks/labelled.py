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
from triform.data.cache import TokenCache
from triform.data.loader import Indices, rung
from triform.data.readers import Row
from triform.data.store import TokenStore
from triform.errors import DataError
from triform.metrics import Labels
from triform.nn.rows import pad
from triform.nn.vocabulary import IGNORE
from triform.tasks.resident import FILLING, Plan, Sequences, filled, fits, n_rows_of
from triform.tasks.task import Batch, ByLength, chunks
from triform.text import OWN, Rows, Special, Tokenizer, encode_stream


@dataclass(frozen=True, kw_only=True)
class Labelled(Batch):
    tokens: Tensor  # (B, T)
    keep: Tensor | None  # (B, T), None where nothing is padded
    labels: Tensor  # (B)


class Examples(ByLength):
    """Encoded texts with label numbers; a text is cut at `max_len` when it is read, not before."""

    def __init__(
        self, store: TokenStore, labels: Labels, max_len: int, versions: int = 1, special: Special = OWN
    ) -> None:
        self.store, self.labels, self.max_len, self.versions = store, labels, max_len, versions
        self.special = special
        self.lengths = np.minimum(store.lengths, max_len)

    def batch(self, indices: Indices) -> Labelled:
        tokens, keep = pad([self.row(index) for index in indices.tolist()], fill=self.special.filling)
        return Labelled(
            tokens=tokens,
            keep=keep,
            labels=torch.from_numpy(self.labels[indices]),
            weight=len(indices),
            n_tokens=int(self.lengths[indices].sum()),
            n_places=tokens.numel(),
        )

    def row(self, index: int) -> NDArray[Any]:
        """The tokens of one text, as many as the model reads."""
        return self.special.cut(self.store[index], self.max_len)

    def on(self, device: torch.device, train: TrainConfig) -> ResidentExamples | None:
        return ResidentExamples(self, device, train) if fits(self.store) else None

    def too_long(self) -> int:
        return int((self.store.lengths[: len(self)] > self.max_len).sum())


class ResidentExamples:
    """The same on a device."""

    def __init__(self, examples: Examples, device: torch.device, train: TrainConfig) -> None:
        self.lengths, self.max_len, self.train = examples.lengths, examples.max_len, train
        self.filling = examples.special.filling
        self.texts = Sequences(examples.store, examples.max_len, device, examples.special.after)
        self.labels = torch.from_numpy(examples.labels).to(device)

    def plan(self, indices: Indices) -> Plan:
        lengths = self.lengths[indices]
        width = rung(int(lengths.max()), self.max_len)
        n_rows = n_rows_of(len(indices), width, self.train)
        return Plan((n_rows, width), filled(indices, n_rows), len(indices), int(lengths.sum()), n_rows * width)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Labelled:
        real, rows = rows != FILLING, rows.clamp(min=0)
        tokens, keep = self.texts.rows(rows, shape[1], self.filling)
        return Labelled(tokens=tokens, keep=keep, labels=torch.where(real, self.labels[rows], IGNORE))


def encode(
    rows: Callable[[], Iterator[Row]],
    name: str,
    numbers: dict[str, int],
    tokenizers: Sequence[Tokenizer],
    *,
    path: Path | None = None,
) -> tuple[TokenStore, Labels]:
    """Rows as tokens and label numbers, once for each tokenizer; with a path the tokens go straight to disk."""
    labels: list[int] = []

    def texts() -> Iterator[str]:
        for row in rows():
            if row.label not in numbers:
                raise DataError(
                    f"label {row.label!r} was never seen in training; known are {', '.join(numbers)}",
                    path=name,
                    line=row.line,
                )
            labels.append(numbers[row.label])
            yield row.text

    encoded = chain.from_iterable(encoded_rows(texts(), tokenizer) for tokenizer in tokenizers)
    store = TokenStore.build_rows(encoded, vocab_size=tokenizers[0].vocab_size, path=path)
    return store, np.array(labels, dtype=np.int64)


def encode_once(
    cache: TokenCache,
    name: str,
    rows: Callable[[], Iterator[Row]],
    labels: Sequence[str],
    tokenizers: Sequence[Tokenizer],
    what: object,
) -> tuple[TokenStore, Labels]:
    """The same on disk, and not again where it was done before; `what` tells the rows from others of the file."""
    numbers = {label: number for number, label in enumerate(labels)}

    def make(folder: Path) -> None:
        found = encode(rows, cache.files[0], numbers, tokenizers, path=folder / name)[1]
        np.save(folder / f"{name}.labels.npy", found)

    def read(folder: Path) -> tuple[TokenStore, Labels]:
        store, found = TokenStore.open(folder / name), np.load(folder / f"{name}.labels.npy", allow_pickle=False)
        if found.dtype != np.int64 or found.shape != (len(store),):
            raise ValueError(f"{name}.labels.npy does not hold a label for each text")
        return store, found

    return cache.open(["classify", name, what, list(labels), tokenizers[0].to_json()], make, read)


def encoded_rows(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Rows]:
    for rows in encode_stream(tokenizer, chunks(texts, characters=len)):
        yield tokenizer.special.framed(rows)
