"""Stopping a run: breaking off a validation, and telling the user what was saved and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from triform.errors import RunInterruptedError
from triform.training.run_folder import RunFolder, checkpoint_step


class ValidationInterrupted(KeyboardInterrupt):
    """A stop was asked for during a validation, which is abandoned."""


class Interruptible(Protocol):
    stop_requested: bool
    interruptible: bool


@contextmanager
def interruptible(trainer: Interruptible) -> Iterator[None]:
    """Around what `stop` may break off at any point."""
    if trainer.stop_requested:
        raise ValidationInterrupted
    trainer.interruptible = True
    try:
        yield
    finally:
        trainer.interruptible = False


def format_resume_command(task: object, path: Path, device: str, extra_options: str = "") -> str:
    """The command that goes on with a run; `more` are further options."""
    device_option = "" if device == "auto" else f" --device {device}"
    return f"triform train {task} --out {shlex.quote(str(path))}{extra_options} --resume{device_option}"


def interrupted_error(step: int, command: str) -> RunInterruptedError:
    """The run was asked to stop, and has saved where it stood; `again` is the command that goes on."""
    return RunInterruptedError(f"stopped at step {step}, everything is saved; go on with: {command}")


def stopped_without_saving_error(folders: Sequence[RunFolder], command: str) -> RunInterruptedError:
    """The run was ended without saving: what there is to go on with."""
    checkpoints = [checkpoint for folder in folders if (checkpoint := folder.latest_checkpoint())]
    if checkpoints and all(folder.is_finished() for folder in folders):
        return RunInterruptedError(f"stopped after training, before the report was written; finish with: {command}")
    if checkpoints:
        step = min(checkpoint_step(checkpoint) for checkpoint in checkpoints)
        return RunInterruptedError(
            f"stopped without saving; go on from the checkpoint of step {step} with: {command}"
        )
    if any(folder.config_file.exists() for folder in folders):
        return RunInterruptedError(f"stopped before the first checkpoint; begin again with: {command}")
    return RunInterruptedError("stopped before training began; nothing was saved")
