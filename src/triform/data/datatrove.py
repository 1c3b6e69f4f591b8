"""Blocks for datatrove pipelines, which tokenize a corpus on many machines.

Each rank of the first pipeline writes its own shards. A second pipeline with one task, which depends on the first,
merges the manifests of the ranks:

    from datatrove.executor import LocalPipelineExecutor  # or SlurmPipelineExecutor, RayPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from triform.data.datatrove import MergeShards, WriteShards

    write = LocalPipelineExecutor([JsonlReader("corpus"), WriteShards("shards", "tokenizer.json")], tasks=4)
    merge = LocalPipelineExecutor([MergeShards("shards")], depends=write)
    merge.run()

datatrove takes any callable as a block, so this module does not import it. The folder must be on a disk that all
machines share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triform.data.files import file_size
from triform.data.readers import TextChunk
from triform.data.shard_writer import TokenStream, iter_shards, sample_fingerprint
from triform.data.shards import (
    DEFAULT_SHARD_TOKENS,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    Position,
    ShardManifest,
    SourceFile,
    digest_tokenizer,
    parse_manifest,
)
from triform.errors import ConfigError, DataError
from triform.io.errors import write_errors
from triform.text import read_tokenizer

RANK_FILE = re.compile(r"rank-(\d+)-of-(\d+)\.json")


@dataclass(frozen=True)
class WriteShards:
    """Block that writes the documents of a rank as token shards. Put it at the end of a pipeline.

    A rank that is started again writes its shards again. `MergeShards` completes the folder.

    Args:
        folder: The folder of the shards, the same for all ranks.
        tokenizer: A run folder, a tokenizer.json, or a tokenizer of another library.
        shard_tokens: The number of tokens of a shard. The last shard of each rank is smaller.
    """

    folder: str
    tokenizer: str
    shard_tokens: int = DEFAULT_SHARD_TOKENS

    def __call__(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        folder, tokenizer = Path(self.folder), read_tokenizer(self.tokenizer)
        if (folder / MANIFEST_FILE).exists():
            raise ConfigError(f"{folder} already has token shards; choose another folder")
        paths: dict[str, None] = {}

        def read_chunks() -> Iterator[tuple[Position, TextChunk]]:
            for number, document in enumerate(data or ()):
                paths[str(document.metadata.get("file_path", ""))] = None
                yield Position(rank, number), TextChunk(document.text, True, number + 1)

        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tokenizer.save(folder / TOKENIZER_FILE)
            stream = TokenStream(tokenizer, read_chunks(), workers=1)  # other ranks use the other cores
            shards = tuple(iter_shards(folder, f"rank-{rank:05d}", stream, self.shard_tokens))
            manifest = ShardManifest(
                tokenizer_sha256=digest_tokenizer(tokenizer),
                tokenizer_kind=tokenizer.kind,
                vocab_size=tokenizer.vocab_size,
                shard_tokens=self.shard_tokens,
                sources=tuple(_describe_source(path) for path in paths if path),
                shards=shards,
            )
            manifest.write(folder / f"rank-{rank:05d}-of-{world_size:05d}.json")


def _describe_source(path: str) -> SourceFile:
    try:
        return SourceFile(path=path, bytes=file_size(path), fingerprint=sample_fingerprint(path))
    except DataError:  # the path may be a name inside of an archive
        return SourceFile(path=path, bytes=0, fingerprint="")


@dataclass(frozen=True)
class MergeShards:
    """Block that completes a folder of token shards after all ranks have written theirs.

    Args:
        folder: The folder of `WriteShards`.
    """

    folder: str

    def __call__(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        folder = Path(self.folder)
        files = {path: match for path in sorted(folder.glob("*.json")) if (match := RANK_FILE.fullmatch(path.name))}
        if rank or (not files and (folder / MANIFEST_FILE).exists()):
            return
        sizes = {int(match[2]) for match in files.values()}
        missing = sorted(set(range(max(sizes, default=1))) - {int(match[1]) for match in files.values()})
        if missing or len(sizes) > 1:
            reason = f"rank {missing[0]} has not finished" if missing else "the ranks are of different pipelines"
            raise DataError(f"the shards cannot be merged: {reason}", path=folder)
        manifests = [parse_manifest(path.read_bytes(), str(path)) for path in files]
        first = manifests[0]
        for path, manifest in zip(files, manifests, strict=True):
            if manifest.tokenizer_sha256 != first.tokenizer_sha256:
                raise DataError("this rank used another tokenizer than the first one", path=path)
        shards = tuple(shard for manifest in manifests for shard in manifest.shards)
        if not shards:
            raise DataError("the ranks have written no tokens", path=folder)
        sources = tuple(source for manifest in manifests for source in manifest.sources)
        with write_errors(folder):
            replace(first, shards=shards, sources=sources).write(folder / MANIFEST_FILE)
            for path in files:
                path.unlink()
