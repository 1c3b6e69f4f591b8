"""How many files a newcomer must open to follow one training step, and one greedy generation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import triform
from triform.training.trainer import Trainer

SOURCE = Path(triform.__file__).parent
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}
TRAIN_SETTINGS = {"max_steps": 3, "batch_size": 8}
MAX_TRAINING_FILES, MAX_GENERATION_FILES = 16, 16


def executed_files(function: Callable[[], object]) -> set[str]:
    """The files of the package in which code runs."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            files.add(path.relative_to(SOURCE).as_posix())

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(previous)
    return files


def test_a_training_step_can_be_followed_in_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original_step, files = Trainer.step, set()

    def traced_step(self: Trainer) -> None:
        files.update(executed_files(lambda: original_step(self)))

    monkeypatch.setattr(Trainer, "step", traced_step)
    triform.train("classify", out=tmp_path / "run", device="cpu", quiet=True, model=MODEL, train=TRAIN_SETTINGS)
    assert {"training/trainer.py", "training/train_step.py", "nn/attention.py"} <= files
    assert len(files) <= MAX_TRAINING_FILES, sorted(files)


def test_a_greedy_generation_can_be_followed_in_few_files(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "quiet": True, "tokenizer": {"kind": "char"}}
    run = triform.train("generate", out=tmp_path / "run", model=MODEL, train=TRAIN_SETTINGS, **options)
    run.predict("If the", strategy="greedy", max_new_tokens=5)  # what is computed once is not part of the path
    files = executed_files(lambda: run.predict("If the", strategy="greedy", max_new_tokens=5))
    assert {"run.py", "nn/attention.py"} <= files
    assert len(files) <= MAX_GENERATION_FILES, sorted(files)
