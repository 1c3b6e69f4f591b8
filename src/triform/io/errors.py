"""Errors about reading and writing the files of a run, as one line for the user."""

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
    """Turn a full disk or an unwritable folder into one line with the remedy.

    Args:
        path: What is being written, for the message.
        run_folder: The folder of the run that is being trained, if any: the message says what of it is safe.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "make room or choose another folder, then try again"
        if run_folder is not None:
            saved_message = (
                "what was saved before is intact. "
                if any(run_folder.glob(f"{CHECKPOINTS_FOLDER}/step-*/{STATE_FILE}"))
                else ""
            )
            remedy = f"{saved_message}Make room or make the folder writable, then go on with --resume"
        raise CheckpointError(f"{path}: cannot be written: {reason}; {remedy}") from None


def damaged_error(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: is damaged ({reason}); restore it from a copy, or train again with --overwrite"
    )


def write_run_text(path: Path, text: str) -> None:
    with write_errors(path):
        files.write_text(path, text)
