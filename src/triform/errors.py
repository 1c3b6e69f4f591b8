"""Errors and notices for the user. Each is one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path


class TriformError(Exception):
    """Base class of errors that the user can fix. The command line prints them without a traceback."""

    is_reported = False  # whether it was printed already, by this process or by another one of the same command


class ConfigError(TriformError):
    """A setting is unknown, has an invalid value, or contradicts another setting."""


class DataError(TriformError):
    """A file or a text cannot be used. The message names the file and, if known, the line or the row (`unit`)."""

    def __init__(
        self, problem: str, *, path: str | Path | None = None, line: int | None = None, unit: str = "line"
    ) -> None:
        self.path, self.line = path, line
        location = "" if path is None else f"{path}: " if line is None else f"{path}, {unit} {line}: "
        super().__init__(location + problem)


class CheckpointError(TriformError):
    """A run folder or checkpoint is missing, damaged, of an unknown format, or cannot be written."""


class FolderInUseError(CheckpointError):
    """Another process writes to a folder."""


class NonFiniteError(CheckpointError):
    """A trained model's output is NaN or infinite."""

    def __init__(self, path: str | Path | None = None) -> None:
        location = "" if path is None else f"{path}: "
        super().__init__(
            f"{location}the model's output is not finite (NaN or infinity): its weights are damaged or its "
            "training diverged; restore the run from a copy, or train it again"
        )


class DivergedError(TriformError):
    """The loss or a gradient became NaN or infinite."""


class RunInterruptedError(TriformError):
    """The user stopped training; the message says what was saved and how to continue."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message alone, because nothing has failed."""
        return [f"{type(self).__name__}: {self}"]


class PeerError(TriformError):
    """Another process of the same command has failed or has ended."""


class WarningText(str):
    """A notice that the user should act on, or that puts a result in doubt. Other notices are plain strings."""

    __slots__ = ()


def notice_level(notice: str) -> str:
    """Return "warning" or "info", as recorded in `metrics.jsonl`."""
    return "warning" if isinstance(notice, WarningText) else "info"


def require_unicode(text: str, name: str = "") -> None:
    """Refuse a path or another text with bytes that are not UTF-8, which Python reads as lone surrogates.

    Run folders store paths as UTF-8, and the libraries that write weights open no other.
    """
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(f"{name}{text!r} is not valid Unicode; rename the file or folder, or correct the text")


def format_notice(notice: str, *, info_prefix: str = "") -> str:
    """Format a notice as one line that starts with "warning: ", or with `info_prefix` if it is not a warning."""
    return f"warning: {notice}" if isinstance(notice, WarningText) else f"{info_prefix}{notice}"


def require_package(package: str, *, extra: str, purpose: str) -> None:
    """Raise a ConfigError that names the extra to install if an optional package is missing.

    Args:
        package: The name under which the package is imported.
        extra: The extra of Triform that installs it.
        purpose: What needs the package, as the subject of a sentence.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {package} ({error}); install it with {install_command(extra)}"
        ) from None


def install_command(extra: str) -> str:
    """Return the command that installs an extra from the source folder of Triform."""
    source_folder = Path(__file__).resolve().parents[2]
    if (source_folder / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{source_folder}[{extra}]')}"
    return f"pip install '.[{extra}]' (in the folder of Triform's source)"
