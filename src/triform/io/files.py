"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from triform.errors import CheckpointError

TEMPORARY_NAME = re.compile(r"\..+\.(\d+)\.part")  # the number is the id of the process that writes it


def temporary_path(path: Path) -> Path:
    """Return the temporary name under which this process writes `path`, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def fsync_path(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk."""
    if sys.platform == "win32":  # neither folders nor files opened for reading can be flushed there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield the temporary name of `path`, and rename what was written there; a failure leaves nothing."""
    temporary = temporary_path(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that a kill leaves the old file or the new one."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content)
        fsync_path(temporary)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does; line endings stay as they are."""
    write_bytes(path, text.encode())


def refuse_special_files(folder: Path) -> None:
    """Refuse a folder that holds pipes, devices or sockets: reading them may never end.

    Raises:
        CheckpointError: The folder has such an entry; the message names it.
    """
    for path in sorted(folder.glob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise CheckpointError(f"{path}: is a pipe, a device or a socket, not a file; restore it from a copy")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that ended processes left in a folder.

    Call it only while holding the folder's lock.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            match = TEMPORARY_NAME.fullmatch(entry.name)
            if match and not _is_running(int(match[1])):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Return whether a process with this id exists. Windows has no harmless way to ask, so there none does."""
    if pid == os.getpid():
        return True
    if sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
