"""Tasks are prepared once, and in float64, so that a difference is a mistake and not rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from task_cases import prepare_task

from triform.config import TaskName
from triform.tasks import PreparedTask


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass
class PreparedTasks:
    """Prepared once a task; tests do not change what stands here."""

    folder: Path
    cache: dict[str, PreparedTask]

    def __getitem__(self, name: TaskName) -> PreparedTask:
        if name not in self.cache:
            (self.folder / name).mkdir()
            self.cache[name] = prepare_task(name, self.folder / name)
        return self.cache[name]


@pytest.fixture(scope="module")
def prepared_tasks(tmp_path_factory: pytest.TempPathFactory) -> PreparedTasks:
    return PreparedTasks(tmp_path_factory.mktemp("tasks"), {})
