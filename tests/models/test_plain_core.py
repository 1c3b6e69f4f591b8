"""The plain Transformer is small, and runs and trains on its own.

It is models/ and nn/ without nn/kernels/, without models/ensemble.py, which averages several Transformers, and
without models/masked.py, which predicts masked tokens in pretraining.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plain_training
import torch

import triform
from triform.nn.kernels.dispatch import use_fast_kernels

SOURCE = Path(triform.__file__).parent
MAX_CORE_LINES = 1_800
BLOCK_AND_RUN = """
import runpy, sys

class BlockKernels:
    def find_spec(self, name, *args):
        if name.startswith("triform.nn.kernels"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, BlockKernels())
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_plain_core_trains_without_the_kernels_package_and_equals_the_fast_path(tmp_path: Path) -> None:
    script = Path(plain_training.__file__)
    command = [sys.executable, "-c", BLOCK_AND_RUN, str(script), str(tmp_path / "plain.pt")]
    subprocess.run(command, check=True)
    plain = torch.load(tmp_path / "plain.pt", weights_only=True)
    fast = plain_training.train_models(use_fast_kernels)
    assert plain.keys() == fast.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(
            fast[name], expected, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_plain_core_is_short_enough_to_be_read() -> None:
    others = {SOURCE / "models" / name for name in ("ensemble.py", "masked.py", "wide.py")}
    files = {*(SOURCE / "models").glob("*.py"), *(SOURCE / "nn").glob("*.py")} - others
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= MAX_CORE_LINES
