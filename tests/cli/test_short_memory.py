"""A device whose memory is full: one line, whatever the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from triform.tasks import TASKS


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_memory_that_is_full_is_one_line(
    command: str, triform: Any, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*inputs: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")

    for name in ("predict", "evaluate"):
        monkeypatch.setattr(TASKS["classify"], name, full)
    answer = triform(command, str(classifier), *(["the soup"] if command == "predict" else []))
    assert answer.code == 2
    assert answer.err == (
        "triform: the memory of the device is full (CUDA out of memory. Tried to allocate 2.00 GiB.); "
        "give fewer or shorter texts, or --device cpu\n"
    )
