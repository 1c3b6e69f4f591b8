"""Write token shards: encode files in order, and cut the tokens into shards of equal size.

The tokens are one stream, whatever the number of processes, so the shards are the same too. After each shard, the
manifest so far is written to progress.json. It has the position in the files at which each shard starts, so a job
that was killed continues after its last shard, and a damaged shard can be made again.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

import numpy as np

from triform.config import DataConfig
from triform.data.encoded_text import EncodedChunks, encode_chunks
from triform.data.files import BLOCK_SIZE, BUILTIN_PREFIX, file_size, open_bytes
from triform.data.readers import TextChunk, fingerprint, is_running_text, read_chunks
from triform.data.shards import (
    DEFAULT_SHARD_TOKENS,
    MANIFEST_FILE,
    PROGRESS_FILE,
    SHARD_SUFFIXES,
    START,
    TOKENIZER_FILE,
    Position,
    ShardManifest,
    SourceFile,
    TokenShard,
    digest_tokenizer,
    file_sha256,
    find_damage,
    parse_manifest,
    read_shard_file,
)
from triform.data.token_store import write_store
from triform.errors import CheckpointError, ConfigError, DataError
from triform.io.errors import write_errors
from triform.io.files import fsync_path, refuse_special_files
from triform.io.locks import LOCK_FILE, folder_lock
from triform.text import Tokenizer, TokenRows
from triform.text.base import token_dtype

FINGERPRINT_BLOCKS = 64  # blocks of a file that its fingerprint covers; of a file up to 64 MiB, these are all
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TokenizeJob:
    """What to tokenize, and how.

    Args:
        files: Files or addresses, which are read in this order.
        tokenizer: The tokenizer.
        shard_tokens: The number of tokens of a shard; 0: it follows from `n_shards`.
        n_shards: The number of shards; 0: it follows from `shard_tokens`.
        text_column: The column of the text; empty: it is found by its name or its content.
        workers: The number of processes that encode; 0: one for each core. The shards do not depend on it.
    """

    files: Sequence[str]
    tokenizer: Tokenizer
    shard_tokens: int = 0
    n_shards: int = 0
    text_column: str = ""
    workers: int = 0

    def open_stream(self, start: Position) -> TokenStream:
        """Return the tokens from a position on."""
        return TokenStream(self.tokenizer, self.read_chunks(start), start, self.workers)

    def read_chunks(self, start: Position) -> Iterator[tuple[Position, TextChunk]]:
        """Yield the chunks of all files from a position, each with its own position.

        The end of a plain text is the end of a document if another file follows. The last one has no end token, as
        in training.
        """
        for number in range(start.file, len(self.files)):
            path = self.files[number]
            chunks = read_chunks(path, DataConfig(text_column=self.text_column))
            if number + 1 < len(self.files) and is_running_text(path):
                chunks = _end_document(chunks)
            for index, chunk in enumerate(chunks):
                if number > start.file or index >= start.chunk:
                    yield Position(number, index), chunk


def _end_document(chunks: Iterator[TextChunk]) -> Iterator[TextChunk]:
    """Yield chunks of which the last one ends a document."""
    previous = next(chunks)
    for chunk in chunks:
        yield previous
        previous = chunk
    yield replace(previous, ends_document=True)


class TokenStream:
    """The tokens of chunks of text, which are read in pieces of any size.

    Attributes:
        position: The position of the next token.
        documents: The number of documents that have been read to their end.
        text_bytes: The size of the texts that have been read to their end, as UTF-8.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chunks: Iterable[tuple[Position, TextChunk]],
        start: Position = START,
        workers: int = 0,
    ) -> None:
        """Encode chunks with their positions. Of the first one, `start.token` tokens are skipped."""
        self.tokenizer, self.position = tokenizer, start
        self.documents = self.text_bytes = 0
        self._positions: deque[Position] = deque()
        self._parts = encode_chunks(tokenizer, self._record_positions(chunks), workers)
        self._part: EncodedChunks | None = None
        self._row, self._n_read = 0, start.token  # rows and tokens of the current part that have been read

    def _record_positions(self, chunks: Iterable[tuple[Position, TextChunk]]) -> Iterator[TextChunk]:
        for position, chunk in chunks:
            self._positions.append(position)
            yield chunk

    def read(self, n_tokens: int) -> Iterator[TokenRows]:
        """Yield the next tokens, `n_tokens` of them or those that are left."""
        while n_tokens:
            if self._part is None:
                self._part = next(self._parts, None)
                if self._part is None:
                    return
            stop = min(self._n_read + n_tokens, len(self._part.rows.tokens))
            n_tokens -= stop - self._n_read
            yield self._read_from_part(self._part, stop)
            if stop == len(self._part.rows.tokens):
                self._part, self._row, self._n_read = None, 0, 0

    def _read_from_part(self, part: EncodedChunks, stop: int) -> TokenRows:
        """Return the tokens of a part up to `stop`, and move the position there."""
        ends = np.cumsum(part.rows.lengths)
        starts = ends - part.rows.lengths
        next_row = int(np.searchsorted(ends, stop, side="right"))  # the first row that is not read to its end
        last_row = min(next_row + 1, len(ends))
        lengths = (
            np.minimum(ends, stop)[self._row : last_row] - np.maximum(starts, self._n_read)[self._row : last_row]
        )
        for chunk in part.chunks[self._row : next_row]:
            self.documents += chunk.ends_document
            self.text_bytes += len(chunk.text.encode())
        for _ in range(next_row - self._row):
            file, index, _ = self._positions.popleft()
            self.position = Position(file, index + 1)
        if next_row < len(ends):
            self.position = self._positions[0]._replace(token=stop - int(starts[next_row]))
        rows = TokenRows(part.rows.tokens[self._n_read : stop], lengths[lengths > 0])
        self._row, self._n_read = next_row, stop
        return rows


def write_shards(job: TokenizeJob, folder: Path, log: Log = lambda line: None) -> ShardManifest:
    """Write the shards of a job to a folder, or those that an interrupted job has not written yet.

    If all shards are there, they are verified, and only those that are damaged are made again.

    Args:
        job: What to tokenize.
        folder: The folder of the shards. It must be new or that of the same job.
        log: Receives a line about each shard.

    Raises:
        ConfigError: The folder belongs to another job.
        DataError: A file cannot be read.
        CheckpointError: The folder cannot be written, or another process writes to it.
    """
    sources = tuple(
        SourceFile(path=path, bytes=file_size(path), fingerprint=sample_fingerprint(path)) for path in job.files
    )
    manifest = ShardManifest(
        tokenizer_sha256=digest_tokenizer(job.tokenizer),
        tokenizer_kind=job.tokenizer.kind,
        vocab_size=job.tokenizer.vocab_size,
        shard_tokens=job.shard_tokens or (0 if job.n_shards else DEFAULT_SHARD_TOKENS),
        requested_shards=job.n_shards,
        text_column=job.text_column,
        sources=sources,
    )
    with folder_lock(folder, "tokenizing"), write_errors(folder):
        refuse_special_files(folder, not_links="*")
        stored = _read_stored(folder)
        if stored is not None:
            _require_same_job(folder, manifest, stored)
            manifest = replace(stored, sources=sources)
        else:
            job.tokenizer.save(folder / TOKENIZER_FILE)
        if not manifest.shard_tokens:
            log(f"counting the tokens, to divide them into {job.n_shards} shards")
            manifest = replace(manifest, shard_tokens=_count_shard_tokens(job))
        is_complete = (folder / MANIFEST_FILE).exists()
        _repair(job, folder, manifest, log, verify=is_complete)
        if not is_complete:
            manifest = _write_missing(job, folder, manifest, log)
    return manifest


def sample_fingerprint(path: str) -> str:
    """Return a hash of the size and of evenly spaced blocks of a file, so that large files are not read twice."""
    hasher = hashlib.sha256()
    if path.startswith(BUILTIN_PREFIX):
        return fingerprint(path)
    size = file_size(path)
    with open_bytes(path, decompress=False) as file:
        if size > FINGERPRINT_BLOCKS * BLOCK_SIZE and file.seekable():
            hasher.update(b"%d" % size)
            for offset in np.linspace(0, size - BLOCK_SIZE, FINGERPRINT_BLOCKS, dtype=np.int64):
                file.seek(int(offset))
                hasher.update(file.read(BLOCK_SIZE))
        else:
            while raw := file.read(BLOCK_SIZE):
                hasher.update(raw)
    return hasher.hexdigest()[:16]


def _read_stored(folder: Path) -> ShardManifest | None:
    """Return the manifest of a complete or interrupted job in a folder; None if no shard has been written."""
    for name in (MANIFEST_FILE, PROGRESS_FILE):
        if (folder / name).exists():
            stored = parse_manifest(read_shard_file(str(folder), name), str(folder / name))
            return stored if stored.shards else None
    if any(path.name not in (TOKENIZER_FILE, LOCK_FILE) for path in folder.iterdir()):
        raise CheckpointError(f"{folder} exists and has no token shards; choose another --out")
    return None


def _require_same_job(folder: Path, requested: ShardManifest, stored: ShardManifest) -> None:
    by_number = requested.requested_shards or stored.requested_shards
    options = {
        "another tokenizer": requested.tokenizer_sha256 != stored.tokenizer_sha256,
        "another --text-column": requested.text_column != stored.text_column,
        "another --shards": requested.requested_shards != stored.requested_shards,
        "another --shard-tokens": not by_number and requested.shard_tokens != stored.shard_tokens,
        "other files, or files that have changed": [source.fingerprint for source in requested.sources]
        != [source.fingerprint for source in stored.sources],
    }
    if differences := [name for name, differs in options.items() if differs]:
        raise ConfigError(
            f"{folder} has token shards that were made with {', '.join(differences)}; "
            "repeat the same command to continue it, or choose another --out"
        )


def _count_shard_tokens(job: TokenizeJob) -> int:
    stream = job.open_stream(START)
    n_tokens = sum(len(rows.tokens) for rows in stream.read(sys.maxsize))
    if n_tokens < job.n_shards:
        raise ConfigError(f"--shards={job.n_shards}, but the text has only {n_tokens} tokens; use fewer shards")
    return -(-n_tokens // job.n_shards)


def _repair(job: TokenizeJob, folder: Path, manifest: ShardManifest, log: Log, *, verify: bool) -> None:
    """Make shards again whose files are missing, have another size or, with `verify`, another checksum."""
    itemsize = token_dtype(manifest.vocab_size).itemsize
    for shard in manifest.shards:
        size = file_size(str(folder / f"{shard.name}.bin"))
        is_intact = size == shard.tokens * itemsize and (folder / f"{shard.name}.idx").exists()
        if is_intact and not (verify and find_damage(folder, shard)):
            continue
        log(f"{shard.name} is damaged or missing and is made again")
        remade = write_shard(folder, shard.name, job.open_stream(shard.start), shard.tokens)
        if remade is None or remade.sha256 != shard.sha256:
            raise DataError(
                f"{shard.name} cannot be made again: the text or the tokenizer has changed; choose another --out",
                path=folder,
            )


def _write_missing(job: TokenizeJob, folder: Path, manifest: ShardManifest, log: Log) -> ShardManifest:
    """Write the shards after those of the manifest, and then the manifest."""
    manifest.write(folder / PROGRESS_FILE)
    stream = job.open_stream(manifest.end)
    for shard in iter_shards(folder, "shard", stream, manifest.shard_tokens, first=len(manifest.shards)):
        manifest = replace(manifest, shards=(*manifest.shards, shard), end=stream.position)
        manifest.write(folder / PROGRESS_FILE)
        log(f"{shard.name}: {shard.tokens:,} tokens, {manifest.n_tokens:,} in all")
    if not manifest.shards:
        raise DataError("there are no tokens in these files", path=", ".join(job.files))
    manifest.write(folder / MANIFEST_FILE)
    (folder / PROGRESS_FILE).unlink()
    return manifest


def iter_shards(
    folder: Path, prefix: str, stream: TokenStream, shard_tokens: int, first: int = 0
) -> Iterator[TokenShard]:
    """Write all tokens of a stream as shards, and yield each shard when its files are on disk."""
    for number in count(first):
        shard = write_shard(folder, f"{prefix}-{number:05d}", stream, shard_tokens)
        if shard is None:
            return
        yield shard


def write_shard(folder: Path, name: str, stream: TokenStream, n_tokens: int) -> TokenShard | None:
    """Write the next tokens of a stream as a shard. Return None if no tokens are left."""
    start, documents, text_bytes = stream.position, stream.documents, stream.text_bytes
    rows = stream.read(n_tokens)
    head = next((batch for batch in rows if len(batch.tokens)), None)
    if head is None:
        return None
    dtype = token_dtype(stream.tokenizer.vocab_size)
    write_store(folder / name, chain([head], rows), dtype)
    paths = {suffix: folder / f"{name}.{suffix}" for suffix in SHARD_SUFFIXES}
    for path in paths.values():
        fsync_path(path)
    return TokenShard(
        name=name,
        tokens=paths["bin"].stat().st_size // dtype.itemsize,
        documents=stream.documents - documents,
        text_bytes=stream.text_bytes - text_bytes,
        sha256={suffix: file_sha256(path) for suffix, path in paths.items()},
        start=start,
    )
