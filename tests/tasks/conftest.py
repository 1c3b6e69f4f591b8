"""Tasks are prepared once, and in float64, so that a difference is a mistake and not rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from task_cases import prepared

from triform.config import TaskName
from triform.tasks import Prepared


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass
class Shelf:
    """Prepared once a task; tests do not change what stands here."""

    folder: Path
    made: dict[str, Prepared]

    def __getitem__(self, name: TaskName) -> Prepared:
        if name not in self.made:
            (self.folder / name).mkdir()
            self.made[name] = prepared(name, self.folder / name)
        return self.made[name]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("tasks"), {})
