"""Write files and folders atomically, open files without following links, and read text and JSON.

A run folder may come from somebody else, and may hold links to files outside of it, or pipes. Its files are opened
with `open_regular`, which checks what it has opened; its folders are checked before anything in them is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from triform.errors import CheckpointError

_folder_numbers = count()  # two threads may write folders with the same name at the same time
TEMPORARY_NAME = re.compile(r"\..+\.(\d+)\.part")  # the number is the id of the writing process
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # 0 on Windows, which has neither flag
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its other end
SPECIAL = "a pipe, a device or a socket"
JUNCTION_TAG = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)  # of a link to a folder, on Windows


def temporary_path(path: Path) -> Path:
    """Return the temporary name under which this process writes `path`, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def fsync_path(path: Path) -> None:
    """Wait until the content of a file or the entries of a folder are on disk."""
    if sys.platform == "win32":  # Windows cannot flush folders or files opened for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename_files(renames: Mapping[Path, Path]) -> None:
    """Rename temporary files to their final names, in order."""
    for temporary, path in renames.items():
        temporary.replace(path)


@contextmanager
def atomic_files(
    *paths: Path, sync: bool = True, publish: Callable[[Mapping[Path, Path]], None] = rename_files
) -> Iterator[tuple[Path, ...]]:
    """Write files that appear under their names only if the block ends without an error.

    Args:
        paths: The final names.
        sync: Wait until the content is on disk, so that a power failure cannot leave an incomplete file.
        publish: Renames the files. It receives a mapping from temporary to final names.

    Yields:
        A temporary name for each path, in the same folder. An error in the block leaves nothing behind.
    """
    temporaries = tuple(map(temporary_path, paths))
    for temporary in temporaries:
        temporary.unlink(missing_ok=True)  # a folder of somebody else may hold links with such names
    try:
        yield temporaries
        for temporary in temporaries if sync else ():
            fsync_path(temporary)
        publish(dict(zip(temporaries, paths, strict=True)))
    finally:
        with suppress(OSError):
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write one file as `atomic_files` does, and yield its temporary name."""
    with atomic_files(path) as (temporary,):
        yield temporary


@contextmanager
def atomic_folder(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Write a folder that appears under its name only if the block ends without an error.

    Args:
        path: The final name. When the block ends, it must not exist or must be an empty folder.
        sync: Wait until the content of the files is on disk.

    Yields:
        A new folder under a temporary name. An error in the block leaves nothing behind.

    Raises:
        OSError: The final name has been taken in the meantime.
    """
    temporary = temporary_path(path.with_name(f"{path.name}.{next(_folder_numbers)}"))
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")) if sync else ():
            if file.is_file():
                fsync_path(file)
        temporary.replace(path)
        if sync:
            fsync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a process that is killed leaves either the old file or the new one."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does. Line endings are not changed."""
    write_bytes(path, text.encode())


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file.

    Raises:
        CheckpointError: The file is missing, cannot be read, or is not UTF-8. The message names the line.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CheckpointError(f"{path}, line {line}: not UTF-8") from None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        CheckpointError: The file cannot be read, is not JSON, or has an object with a duplicate key.
    """

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            duplicate = next(name for index, name in enumerate(names) if name in names[:index])
            raise CheckpointError(f"{path}: duplicate key {duplicate!r}")
        return result

    try:
        return json.loads(read_text(path), object_pairs_hook=reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON, or is damaged ({error})") from None


def open_regular(path: Path, mode: str = "rb") -> Any:
    """Open a file of a run as `open` does, in text mode as UTF-8. A link is not followed, a pipe not waited for.

    Raises:
        CheckpointError: The name is that of a link, a folder, a pipe, a device or a socket.
    """
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=open_regular_handle)


def read_regular(path: Path) -> bytes:
    """Return the content of a file of a run; see `open_regular`."""
    with open_regular(path) as file:
        return bytes(file.read())


def open_regular_handle(path: str | Path, flags: int) -> int:
    """Open a file of a run as `os.open` does; see `open_regular`."""
    if not NO_FOLLOW:
        refuse_special_file(path)
    try:
        handle = os.open(path, flags | NO_FOLLOW | NO_WAIT, 0o666)
    except OSError:
        refuse_special_file(path)  # says more than the error of the system
        raise
    mode = os.fstat(handle).st_mode  # of what has been opened, which nobody can replace any more
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise _special_error(path, "a folder" if stat.S_ISDIR(mode) else SPECIAL)
    return handle


def refuse_special_file(path: str | Path, *, may_be_link: bool = False) -> None:
    """Refuse a file or folder that is a link, a pipe, a device or a socket. It may be missing.

    Inside a run, a link names something outside of it, where nothing may be written or deleted.

    Raises:
        CheckpointError: It is one of these. The message names it.
    """
    try:
        status = Path(path).stat(follow_symlinks=may_be_link)
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == JUNCTION_TAG:
        raise CheckpointError(
            f"{path} is a link, and links inside a run folder are not followed; replace it by a copy, or remove it"
        )
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _special_error(path, SPECIAL)


def refuse_special_files(folder: Path, *, not_links: Iterable[str] = ()) -> None:
    """Refuse a folder that contains pipes, devices or sockets, because reading them may never end.

    Args:
        folder: The folder.
        not_links: Patterns of the names that may not be links either.

    Raises:
        CheckpointError: The folder has such an entry. The message names it.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError:  # it is missing, or reading its files will say why
        return
    for path in paths:
        refuse_special_file(path, may_be_link=not any(fnmatchcase(path.name, pattern) for pattern in not_links))


def _special_error(path: str | Path, kind: str) -> CheckpointError:
    return CheckpointError(f"{path} is {kind}, not a file; remove it, or restore it from a copy")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that processes left behind when they ended.

    Call this function only while you hold the folder's lock.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            match = TEMPORARY_NAME.fullmatch(entry.name)
            if match and not _is_running(int(match[1])):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Return whether a process with this id exists; always False on Windows, which has no safe way to find out."""
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
