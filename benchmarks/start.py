"""From nothing to the first answer: `triform predict` in a new process, beside what importing torch alone takes.

A small classifier is trained first. Each turn is a new Python process, its files warm in the system's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import triform
from benchmarks.board import Board, asked
from benchmarks.timing import Work
from triform.nn.quantize import trouble

TEXT = "The soup was cold, but the staff was wonderful."


def process(*arguments: str) -> Work:
    """A Python process from its start to its end."""
    source = str(Path(triform.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    return lambda: subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
    )


def main(arguments: list[str] | None = None) -> None:
    board = Board("start", asked(__doc__, arguments))
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1} if board.quick else {"d_model": 128, "n_layers": 2}
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        triform.train(
            "classify", out=run, device=board.device.type, quiet=True, train={"max_steps": 3}, model=sizes
        )
        on = ("--device", board.device.type)
        who = {
            "triform predict": process("-m", "triform", "predict", run, TEXT, *on),
            "triform predict, int8": process("-m", "triform", "predict", run, TEXT, *on, "--precision", "int8"),
            "triform --help": process("-m", "triform", "--help"),
            "python, import torch": process("-c", "import torch"),
        }
        if board.cuda or board.quick or trouble():
            del who["triform predict, int8"]
        board.race("a new process", who, 1 if board.quick else 9)
    board.write()


if __name__ == "__main__":
    main()
