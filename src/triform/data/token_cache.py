"""Cache encoded text, so that a large file is tokenized only once.

An entry is a folder whose name is a hash of everything that determines its content: the digests of the files and
how they were processed. A manifest holds the size and a checksum of each file, so that a damaged entry is noticed
and built again. When the cache exceeds `MAX_CACHE_BYTES`, the least recently used entries are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import triform
from triform.data.files import BLOCK_SIZE, MIN_CACHED_BYTES, content_sha256, file_size, format_suffix
from triform.errors import CheckpointError
from triform.io.cache import cache_folder
from triform.io.files import atomic_folder

CACHE_FORMAT = 1  # part of every hash, so that entries of another format are not used
MAX_CACHE_BYTES = 10 << 30  # for all entries together
STALE_SECONDS = 24 * 3600  # an incomplete entry older than this is removed
MANIFEST_FILE, VALUE_FILE = "seal.json", "fact.json"
ENTRY_NAME = re.compile(r"[0-9a-f]{32}")
PARTIAL_ENTRY_NAME = re.compile(rf"\.?{ENTRY_NAME.pattern}\..*\.part")

Builder = Callable[[Path], None]
T = TypeVar("T")


class TokenCache:
    """Cached results for some files, in the user's cache if the files are large, else in the run folder.

    Files inside the run folder are never cached, because they disappear with it. Messages for the user are added to
    `notices`. Only one of several processes writes to the run folder; it has filled it before the others read it.
    """

    def __init__(
        self, files: Sequence[str], fallback_folder: Path, notices: list[str], *, is_writer: bool = True
    ) -> None:
        self.files, self.fallback_folder, self.notices = files, fallback_folder, notices
        self.is_writer = is_writer  # to the run folder

    @property
    def is_large(self) -> bool:
        """Whether the files are large enough for the cache."""
        external_files = [name for name in self.files if Path(name).parent != self.fallback_folder.parent]
        return sum(map(file_size, external_files)) >= MIN_CACHED_BYTES

    def get_or_compute(self, key: object, compute: Callable[[], T]) -> T:
        """Return `compute()`, which must be JSON. For large files it is computed only once."""
        if not self.is_large:
            return compute()

        def build(folder: Path) -> None:
            (folder / VALUE_FILE).write_text(json.dumps(compute()), encoding="utf-8")

        def read(folder: Path) -> T:
            if folder == self.fallback_folder and not self.is_writer:  # it may have another value
                return compute()
            value: T = json.loads((folder / VALUE_FILE).read_text(encoding="utf-8"))
            return value

        return self.open_entry(key, build, read)

    def open_entry(self, key: object, build: Builder, read: Callable[[Path], T]) -> T:
        """Return what `read` returns for an entry. An entry that it cannot read is built again."""
        folder = self.get_or_build(key, build)
        try:
            return read(folder)
        except (CheckpointError, OSError, ValueError, TypeError, EOFError, RecursionError) as error:
            if folder == self.fallback_folder:
                raise
            self._discard(folder, str(error).partition("\n")[0])
        return read(self.get_or_build(key, build))

    def get_or_build(self, key: object, build: Builder) -> Path:
        """Return the folder that `build` fills. Its content is determined by `key` and the files."""
        entry = self._entry_path(key) if self.is_large else None
        if entry is not None:
            try:
                return self._get_or_build_entry(entry, build)
            except (
                OSError,
                CheckpointError,
            ) as error:  # without space or permission, the run folder is used instead
                message = f"the token cache {entry.parent} cannot be written, so tokens are not reused next time"
                reason = getattr(error, "strerror", None) or str(error)
                if not any(notice.startswith(message) for notice in self.notices):
                    self.notices.append(f"{message}: {reason}")
        if not self.is_writer:
            return self.fallback_folder
        try:
            self.fallback_folder.mkdir(parents=True, exist_ok=True)
            build(self.fallback_folder)
        except OSError as error:
            raise CheckpointError(f"{self.fallback_folder} cannot be written: {error.strerror or error}") from None
        return self.fallback_folder

    def _entry_path(self, key: object) -> Path | None:
        try:
            base = cache_folder()
        except RuntimeError:  # the user has no home folder
            return None
        files = [(content_sha256(name), format_suffix(name)) for name in self.files]
        description = json.dumps([CACHE_FORMAT, triform.__version__, files, key], sort_keys=True)
        return base / hashlib.sha256(description.encode()).hexdigest()[:32]

    def _get_or_build_entry(self, entry: Path, build: Builder) -> Path:
        if entry.is_dir() and not self._discard_if_corrupt(entry):
            if os.access(entry / MANIFEST_FILE, os.W_OK):  # a read-only cache can be used too
                os.utime(entry / MANIFEST_FILE)  # the time of its last use
            return entry
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_folder(entry, sync=False) as partial:  # the manifest has checksums
                build(partial)
                _write_manifest(partial)
        except OSError:
            if not entry.is_dir():
                raise
            return self._get_or_build_entry(entry, build)  # another process was faster; use its entry
        prune(entry.parent, keep=entry)
        return entry

    def _discard_if_corrupt(self, entry: Path) -> bool:
        """Remove an entry that does not match its manifest; return whether it was removed."""
        problem = find_corruption(entry)
        if problem:
            self._discard(entry, problem)
        return bool(problem)

    def _discard(self, entry: Path, problem: str) -> None:
        self.notices.append(f"the token cache {entry} is damaged ({problem}) and is built again")
        shutil.rmtree(entry)


def _write_manifest(folder: Path) -> None:
    files = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(folder.iterdir())}
    (folder / MANIFEST_FILE).write_text(json.dumps({"files": files}), encoding="utf-8")


def find_corruption(folder: Path) -> str:
    """Return what is wrong with an entry; an empty string if nothing is."""
    try:
        files: dict[str, list[int]] = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        for name, (size, checksum) in files.items():
            if (folder / name).stat().st_size != size:
                return f"{name} has {(folder / name).stat().st_size} bytes, expected {size}"
            if _checksum(folder / name) != checksum:
                return f"{name} has changed"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST_FILE} cannot be read"
    return ""


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while raw := file.read(BLOCK_SIZE):
            checksum = zlib.crc32(raw, checksum)
    return checksum


def prune(base: Path, *, keep: Path) -> None:
    """Remove old incomplete entries, and the least recently used ones while the cache exceeds its limit."""
    entries: list[tuple[float, int, Path]] = []
    for entry in base.iterdir():
        with suppress(OSError):  # another process may have removed it
            if PARTIAL_ENTRY_NAME.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(entry)
            elif ENTRY_NAME.fullmatch(entry.name):
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append(((entry / MANIFEST_FILE).stat().st_mtime, size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total > MAX_CACHE_BYTES and entry != keep:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
