"""What a user sees when something is wrong: one line that says what, where and what to do."""

from __future__ import annotations

from pathlib import Path


class TriformError(Exception):
    """Base of every error that is the user's to mend; the command line prints it without a traceback."""


class ConfigError(TriformError):
    """A setting is unknown, of the wrong type, or does not fit the others."""


class DataError(TriformError):
    """A file or a text cannot be used; names the file and, where known, the line."""

    def __init__(self, problem: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(place + problem)


class CheckpointError(TriformError):
    """A run folder or checkpoint is missing, damaged, foreign, or cannot be written."""


class DivergedError(TriformError):
    """The loss or a gradient stopped being a finite number."""


class InterruptedRun(TriformError):
    """The user stopped training; everything is saved and the message says how to go on."""
