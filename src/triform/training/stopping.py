"""Stop a run: interrupt a validation, and report what was saved and how to continue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from triform.errors import RunInterruptedError
from triform.training.run_folder import RunFolder, checkpoint_step


class ValidationInterrupted(KeyboardInterrupt):
    """A stop was requested during a validation. A resume repeats the validation."""


class Interruptible:
    """Base class of a trainer and an ensemble, which can be stopped."""

    stop_requested = False
    is_validating = False
    stops_at_once = True  # False: a validation is interrupted between two batches

    def stop(self) -> None:
        """Request a stop after the current step, or at once during a validation. The state is saved first."""
        self.stop_requested = True
        if self.is_validating and self.stops_at_once:
            raise ValidationInterrupted

    @contextmanager
    def interruptible_validation(self) -> Iterator[None]:
        """Let `stop` raise ValidationInterrupted at any point inside the `with` block."""
        if self.stop_requested:
            raise ValidationInterrupted
        self.is_validating = True
        try:
            yield
        finally:
            self.is_validating = False


def format_resume_command(
    task: object, path: Path, device: str, extra_options: str = "", *, n_processes: int = 1
) -> str:
    """Return the command that continues a run."""
    launcher = f"torchrun --nproc-per-node {n_processes} -m " if n_processes > 1 else ""
    device_option = "" if device == "auto" else f" --device {device}"
    return f"{launcher}triform train {task} --out {shlex.quote(str(path))}{extra_options} --resume{device_option}"


def interrupted_error(step: int, command: str) -> RunInterruptedError:
    """Return the error for a run that was stopped and has saved its state."""
    return RunInterruptedError(f"stopped at step {step}, and everything is saved; continue with: {command}")


def stopped_without_saving_error(folders: Sequence[RunFolder], command: str) -> RunInterruptedError:
    """Return the error for runs that ended without saving. It names the checkpoint from which they can continue."""
    checkpoints = [checkpoint for folder in folders if (checkpoint := folder.latest_checkpoint())]
    if checkpoints and all(folder.is_finished() for folder in folders):
        return RunInterruptedError(f"stopped after training, before the report was written; finish with: {command}")
    if checkpoints:
        step = min(checkpoint_step(checkpoint) for checkpoint in checkpoints)
        return RunInterruptedError(
            f"stopped without saving; continue from the checkpoint of step {step} with: {command}"
        )
    if any(folder.config_file.exists() for folder in folders):
        return RunInterruptedError(f"stopped before the first checkpoint; start again with: {command}")
    return RunInterruptedError("stopped before training started; nothing was saved")
