"""A folder of numbered parts that several processes write, and that a job continues after it was killed.

`manifest.json` describes the job and lists the finished parts with their checksums. A process that works on a part
holds the lock of a hidden folder and writes the part into it. The operating system releases the lock when the
process ends, also if it is killed. A finished part is renamed to its final name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.errors import CheckpointError, FolderInUseError
from triform.io.digests import file_digest
from triform.io.errors import write_errors
from triform.io.files import fsync_path, read_json, write_text
from triform.io.locks import LOCK_FILE, folder_lock

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = 1
Manifest = dict[str, Any]
PURPOSE = "predict"


@dataclass(frozen=True)
class PartFolder:
    """A folder of parts with the names `part-000000.jsonl`, `part-000001.jsonl` and so on."""

    path: Path

    def part_path(self, part: int) -> Path:
        """Return the file of a finished part. Parts are counted from 0."""
        return self.path / f"part-{part:06}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Wait until no other process holds the lock of the folder, and hold it.

        Yields:
            A notice for the user if the file system has no locks, else an empty string.
        """
        with folder_lock(self.path, PURPOSE, wait=True) as notice:
            yield notice

    def read_manifest(self) -> Manifest | None:
        """Return the content of the manifest, or None if the folder is missing or empty.

        Raises:
            CheckpointError: The manifest is damaged, or the folder contains something else.
        """
        path = self.path / MANIFEST_FILE
        if not path.exists():
            others = sorted(entry.name for entry in self.path.glob("*") if entry.name != LOCK_FILE)
            if others:
                raise CheckpointError(
                    f"{self.path} contains {others[0]!r} and no {MANIFEST_FILE} of predictions; choose a new folder"
                )
            return None
        manifest = read_json(path)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
            raise CheckpointError(f"{path} is not a manifest of predictions; choose a new folder")
        if manifest["format"] > MANIFEST_FORMAT:
            raise CheckpointError(f"{path} was written by a newer Triform; upgrade Triform, or choose a new folder")
        sections = [manifest.get(name) for name in ("job", "input", "parts")]
        if not all(isinstance(section, dict) for section in sections):
            raise CheckpointError(f"{path} is damaged; restore it from a copy, or choose a new folder")
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest. Call this function only while you hold the lock."""
        path = self.path / MANIFEST_FILE
        content = {"format": MANIFEST_FORMAT, **manifest, "parts": dict(sorted(manifest["parts"].items()))}
        with write_errors(path):
            write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def update_manifest(self, change: Callable[[Manifest], None]) -> None:
        """Read the manifest, change it and write it again, while no other process does."""
        with self.locked():
            manifest = self.require_manifest()
            change(manifest)
            self.write_manifest(manifest)

    def require_manifest(self) -> Manifest:
        """Return the content of a manifest that must exist."""
        manifest = self.read_manifest()
        if manifest is None:
            raise CheckpointError(f"{self.path / MANIFEST_FILE} was removed meanwhile; start the command again")
        return manifest

    @contextmanager
    def claim(self, part: int) -> Iterator[Path | None]:
        """Hold the right to compute a part.

        Yields:
            The file to write the part to, or None if another process works on the part or has finished it.
        """
        folder = self.path / f".{self.part_path(part).stem}"
        with ExitStack() as stack:
            try:
                stack.enter_context(folder_lock(folder, PURPOSE))
            except FolderInUseError:
                yield None
                return
            temporary = folder / self.part_path(part).name
            temporary.unlink(missing_ok=True)
            stack.callback(temporary.unlink, missing_ok=True)
            is_finished = temporary.name in self.require_manifest()["parts"]
            yield None if is_finished else temporary

    def publish(self, part: int, temporary: Path, facts: dict[str, object]) -> None:
        """Give a complete part its final name, and record it in the manifest with its checksum and other facts."""
        path = self.part_path(part)
        with write_errors(path):
            fsync_path(temporary)
            record = {**facts, "sha256": file_digest(temporary)}
            temporary.replace(path)
            fsync_path(self.path)

        def add_record(manifest: Manifest) -> None:
            manifest["parts"][path.name] = record

        self.update_manifest(add_record)

    def find_damaged(self, manifest: Manifest) -> list[str]:
        """Return the names of the finished parts that are missing or do not match their checksums."""
        return [name for name, record in manifest["parts"].items() if not _matches(self.path / name, record)]

    def forget(self, names: list[str]) -> None:
        """Remove parts from the manifest, so that they are computed again."""

        def remove_records(manifest: Manifest) -> None:
            for name in names:
                manifest["parts"].pop(name, None)

        self.update_manifest(remove_records)

    def remove_claims(self) -> None:
        """Remove the hidden folders that killed processes left behind. Call this when all parts are finished."""
        for folder in self.path.glob(".part-*"):
            shutil.rmtree(folder, ignore_errors=True)


def _matches(path: Path, record: dict[str, object]) -> bool:
    try:
        return file_digest(path) == record.get("sha256")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
