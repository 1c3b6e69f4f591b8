"""One-line errors for reading and writing the files of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from triform.errors import CheckpointError
from triform.io import files
from triform.io.run_layout import CHECKPOINTS_FOLDER, STATE_FILE


@contextmanager
def write_errors(path: Path, run_folder: Path | None = None) -> Iterator[None]:
    """Turn errors of writing, such as a full disk, into a CheckpointError that names the remedy.

    Args:
        path: The file or folder that is being written, for the message.
        run_folder: The folder of the run in training, if any. The message says whether a checkpoint is safe and
            how to continue.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "free some space or choose another folder, then try again"
        if run_folder is not None:
            saved_message = (
                "the last checkpoint is intact. "
                if any(run_folder.glob(f"{CHECKPOINTS_FOLDER}/step-*/{STATE_FILE}"))
                else ""
            )
            remedy = f"{saved_message}Free some space or make the folder writable, then continue with --resume"
        raise CheckpointError(f"{path} cannot be written: {reason}; {remedy}") from None


def damaged_error(path: Path, reason: object) -> CheckpointError:
    """Return the error for a damaged file of a run."""
    return CheckpointError(f"{path} is damaged ({reason}); restore it from a copy, or train again with --overwrite")


def write_run_text(path: Path, text: str) -> None:
    """Write a text file of a run atomically; errors become a CheckpointError."""
    with write_errors(path):
        files.write_text(path, text)
