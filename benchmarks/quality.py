"""Measure the quality of each precision: small models trained on built-in data and evaluated in each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import triform
from benchmarks.report import BenchmarkReport
from triform.cli.demo import SETTINGS
from triform.config import TaskName
from triform.nn.kernels.int8 import int8_unavailable_reason
from triform.nn.kernels.precision import Precision, has_bf16

TINY_SETTINGS: dict[str, Any] = {"train": {"max_steps": 3}, "model": {"d_model": 16, "n_heads": 2, "n_layers": 1}}


def supported_precisions(device: torch.device) -> list[Precision]:
    """Return the precisions that are useful on this device, fp32 first."""
    available: list[Precision] = ["fp32"]
    available += ["bf16"] if has_bf16(device) else []
    return available + (["int8"] if device.type == "cpu" and not int8_unavailable_reason() else [])


def report_quality(report: BenchmarkReport, task: TaskName, *metric_names: str) -> None:
    """Train like the demo, and evaluate the test set in each precision."""
    device = report.device.type
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        settings = TINY_SETTINGS if report.smoke else SETTINGS[task]
        decode = {"strategy": "greedy", "max_new_tokens": 2} if report.smoke else {}
        triform.train(task, out=path, device=device, quiet=True, **settings)
        for precision in supported_precisions(report.device):
            metrics = triform.load(path, device=device, precision=precision).evaluate(**decode)
            report.add_figures(
                f"quality of {task}, {precision}", **{name: float(metrics[name]) for name in metric_names}
            )
