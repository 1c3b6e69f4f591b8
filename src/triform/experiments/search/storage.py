"""Open the storage of a search: a journal file, SQLite or PostgreSQL, given as a URL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from triform.errors import ConfigError, require_package
from triform.io.locks import wait_for_lock

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL_FILE = "journal.log"
CONNECT_SECONDS = 10  # in which a PostgreSQL server must answer
URL_FORMS = "journal:FILE, sqlite:///FILE or postgresql://USER@HOST/DATABASE"


def open_storage(url: str, folder: Path) -> BaseStorage:
    """Return the storage of a URL; without a URL, a journal file in the folder of the search.

    Raises:
        ConfigError: The storage cannot be reached. The message never shows a password.
    """
    require_package("optuna", extra="search", purpose="triform search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    scheme = url.partition(":")[0]
    try:
        if not url:
            return _open_journal(folder / JOURNAL_FILE)
        if scheme == "journal":
            return _open_journal(Path(re.sub("^//(?=/)", "", url.removeprefix("journal:"))))
        if scheme in ("sqlite", "postgresql", "postgres"):
            return _open_database(url, scheme)
    except OSError as error:
        raise _unreachable_error(url or str(folder), error) from None
    raise ConfigError(f"--storage {hide_password(url)}: unknown kind of storage; write {URL_FORMS}")


def hide_password(url: str) -> str:
    """Return a URL that can be shown.

    >>> hide_password("postgresql://ann:secret@host/searches")
    'postgresql://ann:***@host/searches'
    """
    return re.sub(r"([?&]password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if not path.parent.is_dir():
        raise ConfigError(f"--storage journal:{path}: the folder {path.parent} does not exist")
    backend = JournalFileBackend(str(path), lock_obj=JournalLock(path))  # type: ignore[arg-type]  # no public class
    try:
        return JournalStorage(backend)
    except (ValueError, KeyError, TypeError):  # what Optuna raises for other content
        raise ConfigError(f"{path} is damaged or no journal of Optuna; restore it, or use another file") from None


class JournalLock:
    """Lock of a journal file. Unlike the locks of Optuna, it is released when its process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def acquire(self) -> bool:
        """Wait for the lock, and remove what a process that was killed left of a line."""
        self.handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        wait_for_lock(self.handle)
        with self.path.open("r+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        os.close(self.handle)


def _open_database(url: str, scheme: str) -> BaseStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    options: dict[str, object] = {"pool_pre_ping": True}
    if re.search("://[^/@]*:.*@.*@", url.partition("?")[0]):
        raise ConfigError(
            f"--storage {hide_password(url)}: the password contains @; put it into PGPASSWORD, or write %40 for @"
        )
    if scheme != "sqlite":
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"--storage {hide_password(url)} needs psycopg ({error}); run pip install 'psycopg[binary]'"
            ) from None
        options["connect_args"] = {"connect_timeout": CONNECT_SECONDS}
    try:
        return RDBStorage(re.sub("^postgres(ql)?:", "postgresql+psycopg:", url), engine_kwargs=options)
    except (ArgumentError, SQLAlchemyError, ValueError) as error:
        raise _unreachable_error(url, error) from None


def _unreachable_error(url: str, error: Exception) -> ConfigError:
    """Return the error with the first line of the reason. A driver may quote the URL with its password."""
    lines = [line.strip() for line in str(getattr(error, "orig", None) or error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    for password in re.findall(r"://[^:/@]*:(.*)@|[?&]password=([^&]*)", url):
        for secret in filter(None, password):
            reason = reason.replace(secret, "***")
    return ConfigError(f"--storage {hide_password(url)} cannot be reached: {hide_password(reason)}")
