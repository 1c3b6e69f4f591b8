"""Measure the start-up time of `triform predict` in a new process, compared with importing torch.

A small classifier is trained first. Each turn is a new Python process whose files are in the system's file cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import triform
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from benchmarks.timing import TimedFn
from triform.nn.kernels.int8 import int8_unavailable_reason

TEXT = "The soup was cold, but the staff was wonderful."


def build_process_run(*arguments: str) -> TimedFn:
    """Return a function that runs a Python process to its end."""
    source = str(Path(triform.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    return lambda: subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
    )


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("start", parse_options(__doc__, arguments))
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1} if report.smoke else {"d_model": 128, "n_layers": 2}
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        triform.train(
            "classify", out=run, device=report.device.type, quiet=True, train={"max_steps": 3}, model=sizes
        )
        device_option = ("--device", report.device.type)
        contestants = {
            "triform predict": build_process_run("-m", "triform", "predict", run, TEXT, *device_option),
            "triform predict, int8": build_process_run(
                "-m", "triform", "predict", run, TEXT, *device_option, "--precision", "int8"
            ),
            "triform --help": build_process_run("-m", "triform", "--help"),
            "python, import torch": build_process_run("-c", "import torch"),
        }
        if report.cuda or report.smoke or int8_unavailable_reason():
            del contestants["triform predict, int8"]
        report.measure("a new process", contestants, 1 if report.smoke else 9)
    report.write()


if __name__ == "__main__":
    main()
