"""Lock a folder for one process at a time. The operating system releases the lock when the process ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from triform.errors import CheckpointError, FolderInUseError, require_unicode
from triform.io.files import open_regular_handle, remove_leftovers

LOCK_FILE = ".lock"
NO_LOCKS_ERRORS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
LOCKED_BYTE = 1 << 30  # far behind the holder's name, because Windows cannot read a locked byte
HOLDER_BYTES = 4096
POLL_SECONDS = 0.1
MAX_TRIES = 100  # attempts to create a folder that another process removes at the same moment
_held_handles: set[int] = set()  # open lock files of this process
_fork_hook: list[bool] = []


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that holds the lock of a folder. The fields are empty if it has not written its name."""

    pid: int = 0
    host: str = ""
    purpose: str = ""
    since: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {self.host} ({self.purpose}, since {self.since})"


def find_lock_holder(folder: Path) -> LockHolder | None:
    """Return the process that holds the lock of a folder, or None if no process does.

    A killed process leaves its lock file behind. The lock itself is tried only if the process that the file names
    could be alive, so that a process that wants the lock at this moment is not disturbed.
    """
    try:
        handle = open_regular_handle(folder / LOCK_FILE, os.O_RDWR)
    except (OSError, CheckpointError):
        return None
    try:
        holder = _read_holder(handle, tries=1)
        if holder.host == socket.gethostname() and not _is_alive(holder.pid):
            return None
        _try_lock(handle)
    except BlockingIOError:
        return holder
    except OSError:  # the file system has no locks, so the name is all there is
        return holder if holder.pid else None
    finally:
        os.close(handle)
    return None


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # os.kill would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user
        return True
    return True


@contextmanager
def folder_lock(folder: Path, purpose: str, *, wait: bool = False) -> Iterator[str]:
    """Hold a folder's lock. A missing folder is created, and removed again if it is still empty at the end.

    Args:
        folder: The folder that only this process may write to.
        purpose: What the holder does, for the error message of other processes.
        wait: Wait until another holder has finished, instead of raising.

    Yields:
        A notice for the user if the file system has no locks, else an empty string.

    Raises:
        FolderInUseError: Another process holds the lock.
        CheckpointError: The folder cannot be written.
        ConfigError: The name of the folder is not UTF-8.
    """
    require_unicode(str(folder))
    created = [parent for parent in folder.parents if not parent.exists()]
    handle, notice = _acquire(folder, purpose, wait)
    try:
        if not notice:
            remove_leftovers(folder)
        yield notice
    finally:
        _release(folder, handle)
        with suppress(OSError):  # usually the folder is not empty
            for path in (folder, *created):
                path.rmdir()


def _acquire(folder: Path, purpose: str, wait: bool) -> tuple[int, str]:
    tries = 0
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = open_regular_handle(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            tries += 1
            if isinstance(error, FileNotFoundError) and tries < MAX_TRIES:
                continue  # another process just removed the folder
            raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}") from None
        try:
            _try_lock(handle)
        except BlockingIOError:
            holder = _read_holder(handle)
            os.close(handle)
            if not wait:
                raise FolderInUseError(
                    f"{folder} is in use by {holder}; wait until that process has ended, or choose another folder"
                ) from None
            time.sleep(POLL_SECONDS)
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS_ERRORS:
                os.close(handle)
                raise CheckpointError(f"{folder} cannot be locked: {error.strerror or error}") from None
            return _register_handle(handle), (
                f"{folder}: this file system does not support locks ({error.strerror}); "
                "make sure that no other process writes to this folder"
            )
        if _is_current(handle, folder / LOCK_FILE):
            _write_holder(handle, purpose)
            return _register_handle(handle), ""
        os.close(handle)  # the previous holder removed the file after we opened it


def _register_handle(handle: int) -> int:
    """Remember an open lock file. A forked child closes its copy, so that the lock ends with this process."""
    if not _fork_hook and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_all)
        _fork_hook.append(True)
    _held_handles.add(handle)
    return handle


def _close_all() -> None:
    for handle in _held_handles:
        with suppress(OSError):
            os.close(handle)
    _held_handles.clear()


def _release(folder: Path, handle: int) -> None:
    if handle not in _held_handles:  # this is a forked child, which does not hold the lock
        return
    _held_handles.discard(handle)
    if sys.platform == "win32":  # Windows cannot remove an open file
        os.close(handle)
    with suppress(OSError):
        (folder / LOCK_FILE).unlink()
    if sys.platform != "win32":
        os.close(handle)


def _is_current(handle: int, path: Path) -> bool:
    """Return whether the locked file is still the one that other processes find under its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


def _write_holder(handle: int, purpose: str) -> None:
    """Write the holder's name into the lock file. The lock also holds if this fails."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "purpose": purpose,
        "since": datetime.now().isoformat(sep=" ", timespec="seconds"),
    }
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, json.dumps(holder).encode())


def _read_holder(handle: int, tries: int = 5) -> LockHolder:
    """Return the process that wrote its name into the lock file."""
    for attempt in range(tries):  # the holder may be writing its name at this moment
        if attempt:
            time.sleep(POLL_SECONDS)
        try:
            os.lseek(handle, 0, os.SEEK_SET)
            holder = json.loads(os.read(handle, HOLDER_BYTES))
            texts = {name: str(holder[name]) for name in ("host", "purpose", "since")}
            return LockHolder(pid=int(holder["pid"]), **texts)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return LockHolder()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> None:
        os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError from None
            raise

    def wait_for_lock(handle: int) -> None:
        """Lock an open file as soon as no other process has locked it. Closing the file ends the lock."""
        while True:
            try:
                return _try_lock(handle)
            except BlockingIOError:
                time.sleep(POLL_SECONDS)

else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait_for_lock(handle: int) -> None:
        """Lock an open file as soon as no other process has locked it. Closing the file ends the lock."""
        fcntl.flock(handle, fcntl.LOCK_EX)
