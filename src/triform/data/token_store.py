"""Sequences of tokens in one flat array, in memory or memory-mapped, so that a dataset may be larger than memory.

On disk, a store named `train` is two files. `train.bin` holds the tokens as little-endian uint16 or uint32.
`train.idx` holds a 16-byte header (magic, version, bytes per token), the int64 offset of each sequence, and the end
of the last one.
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
from triform.io.files import atomic_files
from triform.text.base import token_dtype
from triform.text.tokens import TokenRows

Tokens = NDArray[Any]  # uint16 or uint32
HEADER = struct.Struct("<8sII")
MAGIC, VERSION = b"TRITOKEN", 1
FLUSH_TOKENS = 1 << 18  # tokens (or sequences) that are collected before they are written


def _store_paths(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".bin"), path.with_name(path.name + ".idx")


class TokenStore:
    """Sequences of tokens: `store[i]` is one sequence, `store.tokens` all of them in one array."""

    def __init__(self, tokens: Tokens, offsets: NDArray[np.int64]) -> None:
        self._tokens, self._offsets = tokens, offsets

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], *, vocab_size: int, path: Path | None = None) -> TokenStore:
        """Build a store from sequences. If a path is given, they are streamed to disk."""
        return cls.build_from_batches(
            _batch_sequences(sequences, token_dtype(vocab_size)), vocab_size=vocab_size, path=path
        )

    @classmethod
    def build_from_batches(
        cls, batches: Iterable[TokenRows], *, vocab_size: int, path: Path | None = None
    ) -> TokenStore:
        """Build a store from batches of sequences. If a path is given, they are streamed to disk."""
        dtype = token_dtype(vocab_size)
        if path is None:
            tokens, lengths = [np.zeros(0, dtype)], [np.zeros(1, np.int64)]
            for batch in batches:
                tokens.append(_cast_tokens(batch.tokens, dtype))
                lengths.append(batch.lengths)
            return cls(np.concatenate(tokens), np.cumsum(np.concatenate(lengths)))
        try:
            write_store(path, batches, dtype)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Open a store on disk.

        Raises:
            CheckpointError: The store is missing or damaged.
        """
        bin_path, idx_path = _store_paths(path)
        try:
            with idx_path.open("rb") as file:
                magic, version, token_bytes = HEADER.unpack(file.read(HEADER.size))
            file_sizes = bin_path.stat().st_size, idx_path.stat().st_size - HEADER.size
        except FileNotFoundError as error:
            raise CheckpointError(f"{error.filename}: no such token store") from None
        except (OSError, struct.error) as error:
            raise CheckpointError(f"{idx_path} is damaged ({error}); remove it to build it again") from None
        if (
            (magic, version) != (MAGIC, VERSION)
            or token_bytes not in (2, 4)
            or file_sizes[1] < 8
            or file_sizes[1] % 8
        ):
            raise CheckpointError(f"{idx_path} is damaged, or is not a token store; remove it to build it again")
        offsets: NDArray[np.int64] = np.memmap(idx_path, "<i8", "r", offset=HEADER.size)
        if offsets[0] != 0 or int(offsets[-1]) * token_bytes != file_sizes[0]:
            raise CheckpointError(
                f"{bin_path} has {file_sizes[0]} bytes, expected {int(offsets[-1]) * token_bytes}; "
                "remove it to build it again"
            )
        empty_tokens = np.zeros(0, f"<u{token_bytes}")  # an empty file cannot be mapped
        tokens: Tokens = np.memmap(bin_path, f"<u{token_bytes}", "r") if file_sizes[0] else empty_tokens
        return cls(np.asarray(tokens), np.asarray(offsets))  # plain views of the maps are faster to slice

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        """Return a view of the tokens of one sequence."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} is out of range: the store has {len(self)}")
        index %= len(self)
        return self.tokens[self._offsets[index] : self._offsets[index + 1]]

    @property
    def tokens(self) -> Tokens:
        """A view of all tokens, one sequence after the other."""
        return self._tokens

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The start of each sequence in `tokens`, followed by the end of the last one."""
        return self._offsets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sequence."""
        return np.diff(self._offsets)

    @property
    def n_tokens(self) -> int:
        """The number of tokens."""
        return len(self._tokens)

    def count(self, token: int) -> int:
        """Count the occurrences of a token, block by block."""
        starts = range(0, self.n_tokens, FLUSH_TOKENS)
        return sum(int(np.count_nonzero(self._tokens[start : start + FLUSH_TOKENS] == token)) for start in starts)

    def select(self, rows: NDArray[np.bool_]) -> TokenStore:
        """Return the sequences whose entry in `rows` is True."""
        lengths = self.lengths
        offsets = np.concatenate(([0], np.cumsum(lengths[rows])))
        return TokenStore(self._tokens[np.repeat(rows, lengths)], offsets)

    def slice(self, start: int, stop: int) -> TokenStore:
        """Return a view of the tokens from `start` to `stop`. Sequences across an edge are split there."""
        start, stop, _ = slice(start, stop).indices(self.n_tokens)
        stop = max(start, stop)
        low, high = np.searchsorted(self._offsets, [start, stop], side="right")
        inner_offsets = self._offsets[low:high]
        inner_offsets = inner_offsets[inner_offsets < stop]
        offsets = (
            np.concatenate(([start], inner_offsets, [stop])) - start if stop > start else np.zeros(1, np.int64)
        )
        return TokenStore(self._tokens[start:stop], offsets)


def _batch_sequences(sequences: Iterable[Sequence[int]], dtype: np.dtype[Any]) -> Iterator[TokenRows]:
    tokens, lengths = array(dtype.char), array("q")
    for sequence in sequences:
        tokens.extend(sequence)
        lengths.append(len(sequence))
        if len(tokens) >= FLUSH_TOKENS or len(lengths) >= FLUSH_TOKENS:
            yield TokenRows(np.frombuffer(tokens, dtype), np.frombuffer(lengths, np.int64))
            tokens, lengths = array(dtype.char), array("q")
    yield TokenRows(np.frombuffer(tokens, dtype), np.frombuffer(lengths, np.int64))


def _cast_tokens(tokens: Tokens, dtype: np.dtype[Any]) -> Tokens:
    """Return tokens in the dtype of the store.

    Raises:
        OverflowError: A token does not fit.
    """
    if tokens.dtype.itemsize > dtype.itemsize and len(tokens) and tokens.max() > np.iinfo(dtype).max:
        raise OverflowError(f"token {tokens.max()} does not fit in {dtype}")
    return tokens.astype(dtype.newbyteorder("<"), copy=False)


def write_store(path: Path, batches: Iterable[TokenRows], dtype: np.dtype[Any]) -> None:
    """Stream tokens and offsets to their files. The index is renamed last, which completes the store."""
    tokens_path, index_path = _store_paths(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files(tokens_path, index_path, sync=False) as (temporary_tokens, temporary_index):
        with temporary_tokens.open("wb") as tokens, temporary_index.open("wb") as offsets:
            offsets.write(HEADER.pack(MAGIC, VERSION, dtype.itemsize))
            _write_batches(batches, dtype, tokens, offsets)
        index_path.unlink(missing_ok=True)  # an old index must never be next to new tokens


def _write_batches(batches: Iterable[TokenRows], dtype: np.dtype[Any], tokens: BinaryIO, offsets: BinaryIO) -> None:
    n_tokens = 0
    offsets.write(struct.pack("<q", n_tokens))
    for batch in batches:
        tokens.write(_cast_tokens(batch.tokens, dtype).tobytes())
        offsets.write((n_tokens + np.cumsum(batch.lengths)).astype("<i8").tobytes())
        n_tokens += len(batch.tokens)
