"""The teacher of a run that is trained on the outputs of another model (`train.distill_from`)."""

from __future__ import annotations

from pathlib import Path

import torch

from triform.errors import CheckpointError, ConfigError
from triform.io.ensembles import find_member_folders
from triform.io.run_layout import MODEL_FILE
from triform.tasks import Task
from triform.tasks.ensemble import find_difference
from triform.training.opening import open_task


def load_teacher(task: Task, device: torch.device, *, verify: bool = True) -> None:
    """Set the teacher of a task, if its settings name one. The state of the random generators does not change.

    Raises:
        ConfigError: The teacher cannot be read, or its outputs are not about the same labels or tokens.
    """
    name = task.config.train.distill_from
    if not name:
        return
    try:
        teacher = open_task(Path(name), device="cpu", verify=verify).task
    except CheckpointError as error:
        raise ConfigError(f"train.distill_from={error}") from None
    if difference := find_difference(teacher, task):
        raise ConfigError(f"train.distill_from={name} cannot teach this model: {difference}")
    max_len = teacher.config.data.max_len
    if max_len < task.config.data.max_len and not teacher.config.model.is_recurrent:
        raise ConfigError(
            f"train.distill_from={name} reads at most {max_len} tokens; set data.max_len to {max_len} or less"
        )
    task.teacher = teacher.model.to(device).eval().requires_grad_(False)


def teacher_files(distill_from: str) -> list[str]:
    """Return the weight files of a teacher. A run that is resumed needs the same ones."""
    return [str(folder / MODEL_FILE) for folder in find_member_folders(Path(distill_from))] if distill_from else []
