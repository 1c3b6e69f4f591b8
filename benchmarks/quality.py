"""What a faster precision costs in quality: small models trained on built-in data, scored in each precision."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import triform
from benchmarks.board import Board
from triform.cli.demo import SETTINGS
from triform.config import TaskName
from triform.nn.precision import Precision, has_bf16
from triform.nn.quantize import trouble

SMALLEST: dict[str, Any] = {"train": {"max_steps": 3}, "model": {"d_model": 16, "n_heads": 2, "n_layers": 1}}


def precisions(device: torch.device) -> list[Precision]:
    """Those that are of use here, fp32 first."""
    found: list[Precision] = ["fp32"]
    found += ["bf16"] if has_bf16(device) else []
    return found + (["int8"] if device.type == "cpu" and not trouble() else [])


def scores(board: Board, task: TaskName, *names: str) -> None:
    """Train as the demo does, and score the test set in each precision."""
    device = board.device.type
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        settings = SMALLEST if board.quick else SETTINGS[task]
        decode = {"strategy": "greedy", "max_new_tokens": 2} if board.quick else {}
        triform.train(task, out=path, device=device, quiet=True, **settings)
        for precision in precisions(board.device):
            found = triform.load(path, device=device, precision=precision).evaluate(**decode)
            board.note(f"quality of {task}, {precision}", **{name: float(found[name]) for name in names})
