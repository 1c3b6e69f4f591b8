"""Data files that clients upload. The server chooses their paths; the name that a client gives is only a label."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

import anyio.to_thread
import msgspec

from triform.data.files import KIND_BY_SUFFIX, iter_text_blocks
from triform.data.folders import COMPRESSION_SUFFIXES
from triform.errors import CheckpointError, DataError
from triform.io.files import read_regular, refuse_special_file, write_bytes
from triform.serving.endpoints import ApiError

UPLOADS_FOLDER = "uploads"
UPLOAD_PREFIX = "upload:"  # of the name of an upload in a request, as in builtin:NAME
UPLOAD_ID = re.compile(r"[0-9a-f]{16}")
MAX_LABEL_CHARS = 100
MAX_AGE_SECONDS = 24 * 3_600  # of an upload that no job uses
TEXT_SUFFIX = ".txt"
RECORD_FILE, PARTIAL_FILE = "upload.json", "data.part"


class UploadRecord(msgspec.Struct, kw_only=True):
    """What is stored of an upload.

    Args:
        label: The name that the client gave.
        file: The name of the file, chosen by the server.
        bytes: The size of the file.
        is_used: Whether a run was trained on it. Other uploads are deleted after a day.
    """

    label: str
    file: str
    bytes: int
    is_used: bool = False


def make_label(name: str) -> str:
    """Return the last part of a name that a client gave, without control characters."""
    last_part = PureWindowsPath(PurePosixPath(name).name).name
    printable = "".join(character for character in last_part if character.isprintable())
    return printable[:MAX_LABEL_CHARS].strip() or "data"


def choose_suffix(label: str) -> str:
    """Return the suffix under which a file is stored, which the readers know, or "" for an unknown one."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(label).suffixes[-2:]]
    compression = suffixes[-1] if suffixes and suffixes[-1] in COMPRESSION_SUFFIXES else ""
    kind = suffixes[-2 if compression else -1] if len(suffixes) > bool(compression) else ""
    return kind + compression if kind in KIND_BY_SUFFIX else ""


class UploadStore:
    """The uploads below a folder: each has a folder with its file and a record with its label."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        refuse_special_file(folder.parent)
        refuse_special_file(folder)

    async def receive(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """Write a file as it arrives, and return its id.

        Raises:
            ApiError: The format is unknown, or the file is empty.
        """
        upload_id = secrets.token_hex(8)
        folder = self.folder / upload_id
        folder.mkdir(parents=True)
        try:
            n_bytes = 0
            async with await anyio.open_file(folder / PARTIAL_FILE, "wb") as file:
                async for chunk in chunks:
                    await file.write(chunk)
                    n_bytes += len(chunk)
            await anyio.to_thread.run_sync(self._publish, upload_id, make_label(name), n_bytes)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return upload_id

    def _publish(self, upload_id: str, label: str, n_bytes: int) -> None:
        partial = self.folder / upload_id / PARTIAL_FILE
        if not n_bytes:
            raise ApiError(400, f"{label}: the file is empty")
        suffix = choose_suffix(label) or _require_text(partial, label)
        record = UploadRecord(label=label, file=f"data{suffix}", bytes=n_bytes)
        partial.replace(partial.with_name(record.file))
        self._write(upload_id, record)

    def find(self, upload_id: str) -> tuple[UploadRecord, Path]:
        """Return an upload and its file.

        Raises:
            ApiError: There is no such upload.
            CheckpointError: It is a link.
        """
        folder = self.folder / upload_id
        record = _read_record(folder) if UPLOAD_ID.fullmatch(upload_id) else None
        if record is None or not (path := folder / record.file).is_file():
            raise ApiError(404, f"there is no upload {upload_id[:40]!r}; upload the file again", param="data")
        refuse_special_file(folder)
        refuse_special_file(path)
        return record, path

    def mark_used(self, upload_id: str) -> None:
        """Keep an upload, because a run is trained on it."""
        record, _ = self.find(upload_id)
        record.is_used = True
        self._write(upload_id, record)

    def forget_unused(self, max_bytes: int) -> None:
        """Delete uploads that no run was trained on: those older than a day, and the oldest beyond `max_bytes`."""
        oldest, unused = time.time() - MAX_AGE_SECONDS, []
        for folder in self.folder.glob("*"):
            record = _read_record(folder)
            if record is None or not record.is_used:
                with suppress(OSError):  # another request has removed it
                    unused.append((folder.lstat().st_mtime, record.bytes if record else 0, folder))
        n_bytes = 0
        for modified, size, folder in sorted(unused, reverse=True):
            n_bytes += size
            if modified < oldest or (size and n_bytes > max_bytes):
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, upload_id: str, record: UploadRecord) -> None:
        write_bytes(self.folder / upload_id / RECORD_FILE, msgspec.json.encode(record))


def find_upload_label(path: str) -> str:
    """Return the name that a client gave to an uploaded file, or "" if the path is not that of an upload."""
    folder = Path(path).parent
    if folder.parent.name != UPLOADS_FOLDER or not UPLOAD_ID.fullmatch(folder.name):
        return ""
    record = _read_record(folder)
    return record.label if record else ""


def _read_record(folder: Path) -> UploadRecord | None:
    try:
        return msgspec.json.decode(read_regular(folder / RECORD_FILE), type=UploadRecord)
    except (OSError, CheckpointError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _require_text(path: Path, label: str) -> str:
    """Return the suffix of a text. Aligned files have names such as train.en, so any suffix is accepted.

    Raises:
        ApiError: The file is no text.
    """
    try:
        for _ in iter_text_blocks(str(path)):
            pass
    except DataError:
        known = ", ".join(KIND_BY_SUFFIX)
        message = f"{label}: not a text file; supported formats are {known}, each also with .gz or .zst added"
        raise ApiError(400, message) from None
    return TEXT_SUFFIX
