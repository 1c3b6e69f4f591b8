"""Sequences of tokens as one flat array, in memory or mapped from disk, so that a set may exceed memory.

On disk a store named `train` is two files: `train.bin` holds the tokens, little-endian uint16 or uint32, and
`train.idx` a 16-byte head (magic, version, bytes per token) and the int64 places where sequences begin, the
last one being the end.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from triform.errors import CheckpointError
from triform.io.files import part_path
from triform.text.base import Rows, token_type

Tokens = NDArray[Any]  # uint16 or uint32
HEAD = struct.Struct("<8sII")
MAGIC, VERSION = b"TRITOKEN", 1
FLUSH = 1 << 18  # tokens (or sequences) gathered before they are written


def _files(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".bin"), path.with_name(path.name + ".idx")


class TokenStore:
    """Sequences of tokens: `store[i]` is one of them, `store.tokens` all of them end to end."""

    def __init__(self, tokens: Tokens, places: NDArray[np.int64]) -> None:
        self._tokens, self._places = tokens, places

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], *, vocab_size: int, path: Path | None = None) -> TokenStore:
        """Gather sequences; with a path, straight to disk, a little at a time."""
        return cls.build_rows(_gathered(sequences, token_type(vocab_size)), vocab_size=vocab_size, path=path)

    @classmethod
    def build_rows(cls, parts: Iterable[Rows], *, vocab_size: int, path: Path | None = None) -> TokenStore:
        """The same from sequences that come many at a time."""
        dtype = token_type(vocab_size)
        if path is None:
            tokens, lengths = [np.zeros(0, dtype)], [np.zeros(1, np.int64)]
            for rows in parts:
                tokens.append(_fitting(rows.tokens, dtype))
                lengths.append(rows.lengths)
            return cls(np.concatenate(tokens), np.cumsum(np.concatenate(lengths)))
        try:
            _write(path, parts, dtype)
        except OSError as error:
            raise CheckpointError(f"{path}: tokens cannot be written: {error.strerror or error}") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Map what `build` wrote; a CheckpointError when it is missing or its parts do not fit."""
        bin_path, idx_path = _files(path)
        try:
            with idx_path.open("rb") as file:
                magic, version, width = HEAD.unpack(file.read(HEAD.size))
            sizes = bin_path.stat().st_size, idx_path.stat().st_size - HEAD.size
        except FileNotFoundError as error:
            raise CheckpointError(f"{error.filename}: no such token store") from None
        except (OSError, struct.error) as error:
            raise CheckpointError(f"{idx_path}: is damaged ({error}); remove it to build it again") from None
        if (magic, version) != (MAGIC, VERSION) or width not in (2, 4) or sizes[1] < 8 or sizes[1] % 8:
            raise CheckpointError(f"{idx_path}: is damaged or foreign; remove it to build it again")
        places: NDArray[np.int64] = np.memmap(idx_path, "<i8", "r", offset=HEAD.size)
        if places[0] != 0 or int(places[-1]) * width != sizes[0]:
            raise CheckpointError(
                f"{bin_path}: has {sizes[0]} bytes where {int(places[-1]) * width} were written; "
                "remove it to build it again"
            )
        empty = np.zeros(0, f"<u{width}")  # an empty file cannot be mapped
        tokens: Tokens = np.memmap(bin_path, f"<u{width}", "r") if sizes[0] else empty
        return cls(np.asarray(tokens), np.asarray(places))  # plain views of the maps are quicker to slice

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, index: int) -> Tokens:
        """The tokens of one sequence, as a view."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        index %= len(self)
        return self.tokens[self._places[index] : self._places[index + 1]]

    @property
    def tokens(self) -> Tokens:
        """All tokens end to end, as a view."""
        return self._tokens

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each sequence has."""
        return np.diff(self._places)

    @property
    def total(self) -> int:
        """How many tokens there are."""
        return len(self._tokens)

    def count(self, token: int) -> int:
        """How often a token occurs, looking at a little of a mapped store at a time."""
        starts = range(0, self.total, FLUSH)
        return sum(int(np.count_nonzero(self._tokens[start : start + FLUSH] == token)) for start in starts)

    def slice(self, start: int, stop: int) -> TokenStore:
        """The tokens from `start` up to `stop`, as a view; a sequence across an edge is cut there."""
        start, stop, _ = slice(start, stop).indices(self.total)
        stop = max(start, stop)
        low, high = np.searchsorted(self._places, [start, stop], side="right")
        inner = self._places[low:high]
        inner = inner[inner < stop]
        places = np.concatenate(([start], inner, [stop])) - start if stop > start else np.zeros(1, np.int64)
        return TokenStore(self._tokens[start:stop], places)


def _gathered(sequences: Iterable[Sequence[int]], dtype: np.dtype[Any]) -> Iterator[Rows]:
    held, lengths = array(dtype.char), array("q")
    for sequence in sequences:
        held.extend(sequence)
        lengths.append(len(sequence))
        if len(held) >= FLUSH or len(lengths) >= FLUSH:
            yield Rows(np.frombuffer(held, dtype), np.frombuffer(lengths, np.int64))
            held, lengths = array(dtype.char), array("q")
    yield Rows(np.frombuffer(held, dtype), np.frombuffer(lengths, np.int64))


def _fitting(tokens: Tokens, dtype: np.dtype[Any]) -> Tokens:
    """The tokens in the type of the store; one that does not fit is never stored as another."""
    if tokens.dtype.itemsize > dtype.itemsize and len(tokens) and tokens.max() > np.iinfo(dtype).max:
        raise OverflowError(f"token {tokens.max()} does not fit in {dtype}")
    return tokens.astype(dtype.newbyteorder("<"), copy=False)


def _write(path: Path, parts: Iterable[Rows], dtype: np.dtype[Any]) -> None:
    """Stream to files beside the final ones, then rename; the index comes last and makes the store whole."""
    finals = _files(path)
    asides = [part_path(file) for file in finals]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with asides[0].open("wb") as tokens, asides[1].open("wb") as places:
            places.write(HEAD.pack(MAGIC, VERSION, dtype.itemsize))
            _stream(parts, dtype, tokens, places)
        finals[1].unlink(missing_ok=True)  # an old index must never stand beside new tokens
        for aside, final in zip(asides, finals, strict=True):
            aside.replace(final)
    finally:
        for aside in asides:
            aside.unlink(missing_ok=True)


def _stream(parts: Iterable[Rows], dtype: np.dtype[Any], tokens: BinaryIO, places: BinaryIO) -> None:
    total = 0
    places.write(struct.pack("<q", total))
    for rows in parts:
        tokens.write(_fitting(rows.tokens, dtype).tobytes())
        places.write((total + np.cumsum(rows.lengths)).astype("<i8").tobytes())
        total += len(rows.tokens)
