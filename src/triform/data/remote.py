"""Read files at addresses such as `s3://`, `hf://` and `https://`, through fsspec, which torch installs."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO, TypeVar

from triform.errors import DataError

READ_AHEAD_BYTES = 1 << 20  # bytes of an address that are read at once
T = TypeVar("T")


def open_remote(url: str) -> BinaryIO:
    """Open an address for reading.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: The protocol is unknown, needs another package, or the address cannot be reached.
    """
    return BufferedReader(RemoteFile(_call(url, lambda fs, path: fs.open(path, "rb"))), READ_AHEAD_BYTES)


def remote_version(url: str) -> tuple[int, str]:
    """Return the size of a file, 0 if it is unknown, and a text that changes with the file."""
    try:
        info = _call(url, lambda fs, path: fs.info(path))
    except (DataError, FileNotFoundError):
        return 0, ""
    version = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), "")
    return int(info.get("size") or 0), str(version)


def read_remote(url: str) -> bytes:
    """Return the content of a small file."""
    with open_remote(url) as file:
        return file.read()


def download(url: str, destination: str) -> None:
    """Copy the file at an address to a local path."""
    _call(url, lambda fs, path: fs.get_file(path, destination))


class RemoteFile(RawIOBase):
    """A file that fsspec has opened. All errors of the connection become an OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        data = _convert_errors(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(_convert_errors(lambda: self._file.seek(offset, whence)))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _convert_errors(read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError:
        raise
    except Exception as error:  # each protocol has its own errors
        raise OSError(f"{type(error).__name__}: {error}") from error


def _call(url: str, use: Callable[[Any, str], T]) -> T:
    """Call a function with the file system and the path of an address."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        return use(*fsspec.core.url_to_fs(url))
    except FileNotFoundError:
        raise
    except ImportError as error:
        raise DataError(f"{protocol}:// needs another package ({error})", path=url) from None
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise DataError(f"the address cannot be read ({error})", path=url) from None
        raise DataError(
            f"unknown protocol {protocol!r}; use a file name, s3://, hf://, https:// or another protocol of fsspec",
            path=url,
        ) from None
    except Exception as error:  # each protocol has its own errors
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise DataError(f"the address cannot be reached ({reason})", path=url) from None
