"""Open token shards. Those in a folder are memory-mapped; those at an address are copied to a bounded cache."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from triform.config.merging import is_url
from triform.data.remote import download
from triform.data.shards import (
    SHARD_SUFFIXES,
    TOKENIZER_FILE,
    TokenShard,
    digest_tokenizer,
    find_damage,
    read_manifest,
    read_shard_file,
)
from triform.data.shuffled_windows import POOL_SHARDS
from triform.data.token_store import TokenStore
from triform.errors import CheckpointError, DataError
from triform.io.cache import cache_folder
from triform.io.files import temporary_path
from triform.text import Tokenizer, load_tokenizer

MAX_OPEN_SHARDS = 2 * POOL_SHARDS + 1  # the shards in use, the next ones, and one for validation
MAX_TRIES = 3
REPAIR = "to make it again, repeat the `triform data tokenize` command, or copy it again"


class ShardReader:
    """The shards of a folder or an address. Each shard is compared with its checksum when it is first opened.

    Args:
        location: A folder, or an address such as `s3://bucket/corpus`.
    """

    def __init__(self, location: str) -> None:
        self.location, self.manifest = location, read_manifest(location)
        self._stores: OrderedDict[int, TokenStore] = OrderedDict()
        self._verified: set[int] = set()
        self._fetching: dict[int, Future[None]] = {}
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="shards")

    @cached_property
    def folder(self) -> Path:
        """The folder of the shards, which for an address is a cache."""
        if not is_url(self.location):
            return Path(self.location)
        key = hashlib.sha256(f"{self.location} {self.manifest.shards}".encode()).hexdigest()[:32]
        return cache_folder() / "shards" / key

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the shards."""
        try:
            content = read_shard_file(self.location, TOKENIZER_FILE)
        except FileNotFoundError:
            raise DataError(f"{TOKENIZER_FILE} is missing; copy it again", path=self.location) from None
        with TemporaryDirectory() as folder:
            path = Path(folder) / TOKENIZER_FILE
            path.write_bytes(content)
            try:
                tokenizer = load_tokenizer(path)
            except CheckpointError:
                raise DataError(f"{TOKENIZER_FILE} is damaged; copy it again", path=self.location) from None
        if digest_tokenizer(tokenizer) != self.manifest.tokenizer_sha256:
            raise DataError(
                f"{TOKENIZER_FILE} is not the tokenizer of the shards; copy it again", path=self.location
            )
        return tokenizer

    def open(self, index: int) -> TokenStore:
        """Return a shard.

        Raises:
            DataError: The shard is missing or damaged, or cannot be copied. The message names it.
        """
        if index not in self._stores:
            if future := self._fetching.pop(index, None):
                future.result()
            self._stores[index] = self._open_store(index)
            if len(self._stores) > MAX_OPEN_SHARDS:
                self._stores.popitem(last=False)
        self._stores.move_to_end(index)
        return self._stores[index]

    def _open_store(self, index: int) -> TokenStore:
        for tries_left in reversed(range(MAX_TRIES)):  # another process may remove the shard from the cache
            self.verify(index)
            try:
                return TokenStore.open(self.folder / self.manifest.shards[index].name)
            except CheckpointError as error:
                if not (is_url(self.location) and tries_left):
                    raise DataError(f"{error}; {REPAIR}") from None
        raise AssertionError

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to copy and to verify shards in the background. `open` raises the errors."""
        for index in indices:
            if index not in self._stores and index not in self._fetching:
                self._fetching[index] = self._executor.submit(self.verify, index)

    def verify(self, index: int) -> None:
        """Compare a shard with its checksum, if that has not been done yet. One at an address is copied first.

        Raises:
            DataError: The shard is missing or damaged, or cannot be copied. The message names it.
        """
        shard = self.manifest.shards[index]
        was_cached = is_url(self.location) and not self._copy_to_cache(shard, index)
        if index in self._verified:
            return
        problem = find_damage(self.folder, shard)
        if problem and is_url(self.location):
            self._remove(shard.name)
        if problem and was_cached:  # the copy is damaged, but the original may be intact
            self._copy_to_cache(shard, index)
            problem = find_damage(self.folder, shard)
        if problem:
            raise DataError(f"{problem}; {REPAIR}", path=self.location)
        self._verified.add(index)

    def _copy_to_cache(self, shard: TokenShard, index: int) -> bool:
        """Copy a shard to the cache, and return whether it was not there yet."""
        paths = [self.folder / f"{shard.name}.{suffix}" for suffix in SHARD_SUFFIXES]
        if all(path.exists() for path in paths):
            with suppress(OSError):
                paths[0].touch()  # the time of its last use
            return False
        self._verified.discard(index)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._evict()
            for path in paths:
                temporary = temporary_path(path)
                try:
                    download(f"{self.location.rstrip('/')}/{path.name}", str(temporary))
                    temporary.replace(path)
                finally:
                    temporary.unlink(missing_ok=True)
        except FileNotFoundError:
            raise DataError(f"{shard.name} is missing; {REPAIR}", path=self.location) from None
        except OSError as error:
            raise DataError(f"{shard.name} cannot be copied to {self.folder}: {error.strerror or error}") from None
        return True

    def _evict(self) -> None:
        """Remove the least recently used shards of the cache, so that there is room for one more."""
        with suppress(OSError):  # another process may remove files too
            shards = sorted(self.folder.glob("*.bin"), key=lambda path: path.stat().st_mtime)
            for path in shards[: max(0, len(shards) + 1 - MAX_OPEN_SHARDS)]:
                self._remove(path.stem)

    def _remove(self, name: str) -> None:
        for suffix in SHARD_SUFFIXES:
            with suppress(OSError):
                (self.folder / f"{name}.{suffix}").unlink(missing_ok=True)
