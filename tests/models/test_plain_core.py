"""The plain Transformer runs and trains without the kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plain_training
import torch

from triform.nn.kernels.dispatch import use_fast_kernels

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
