"""Stopping a run: breaking off a validation, and telling the user what was saved and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from triform.errors import InterruptedRun
from triform.training.folder import RunFolder, checkpoint_step


class ValidationInterrupted(KeyboardInterrupt):
    """A stop was asked for during a validation, which is abandoned."""


class Interruptible(Protocol):
    stopping: bool
    interruptible: bool


@contextmanager
def interruptible(trainer: Interruptible) -> Iterator[None]:
    """Around what `stop` may break off at any point."""
    if trainer.stopping:
        raise ValidationInterrupted
    trainer.interruptible = True
    try:
        yield
    finally:
        trainer.interruptible = False


def resume_command(task: object, path: Path, device: str, more: str = "") -> str:
    """The command that goes on with a run; `more` are further options."""
    where = "" if device == "auto" else f" --device {device}"
    return f"triform train {task} --out {shlex.quote(str(path))}{more} --resume{where}"


def interrupted(step: int, again: str) -> InterruptedRun:
    """The run was asked to stop, and has saved where it stood; `again` is the command that goes on."""
    return InterruptedRun(f"stopped at step {step}, everything is saved; go on with: {again}")


def stopped_at_once(folders: Sequence[RunFolder], again: str) -> InterruptedRun:
    """The run was ended without saving: what there is to go on with."""
    latest = [checkpoint for folder in folders if (checkpoint := folder.latest_checkpoint())]
    if latest and all(folder.finished() for folder in folders):
        return InterruptedRun(f"stopped after training, before the report was written; finish with: {again}")
    if latest:
        step = min(checkpoint_step(checkpoint) for checkpoint in latest)
        return InterruptedRun(f"stopped without saving; go on from the checkpoint of step {step} with: {again}")
    if any(folder.config_file.exists() for folder in folders):
        return InterruptedRun(f"stopped before the first checkpoint; begin again with: {again}")
    return InterruptedRun("stopped before training began; nothing was saved")
