"""Start several processes of a command or of a script, with torchrun or as torchrun does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_processes import run_ranks, run_script

SCRIPT = Path(__file__).parent / "train_runs.py"
TIMEOUT_SECONDS = 400  # of a launch; a hanging one fails its test


def torchrun_command(n_processes: int, *arguments: str, options: Sequence[str] = ("--standalone",)) -> list[str]:
    """Return the command that starts processes on this machine; arguments start with `-m triform` or a script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(n_processes)]
    return [*launcher, *arguments]


def child_environment(**variables: str) -> dict[str, str]:
    """Return the environment of the processes: one thread each."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    return inherited | {"OMP_NUM_THREADS": "1"} | variables


def torchrun(
    n_processes: int,
    *arguments: str,
    options: Sequence[str] = ("--standalone",),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Start processes, wait for them and return what they print."""
    return subprocess.run(
        torchrun_command(n_processes, *arguments, options=options),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=child_environment(**(environment or {})),
    )


def run_script_in_ranks(n_processes: int, script: Path, folder: Path) -> str:
    """Run a script in processes that find each other as those of torchrun do, and return what they print.

    Other tests start torchrun itself, whose processes import torch first.
    """
    log_file = folder / "log.txt"
    exit_codes = run_ranks(
        n_processes, run_script, str(script), str(folder), log_file=log_file, seconds=TIMEOUT_SECONDS
    )
    log = log_file.read_text(encoding="utf-8")
    assert exit_codes == [0] * n_processes, log
    return log


def serve_store(folder: str) -> None:
    """In a process of its own: keep the store of other processes, and write where it is to files."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, number in {"store.pid": os.getpid(), "store.port": store.port}.items():
        (Path(folder) / f"{name}.new").write_text(str(number))
        (Path(folder) / f"{name}.new").rename(Path(folder) / name)
    time.sleep(TIMEOUT_SECONDS)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.1)


def train_runs(n_processes: int, runs: list[dict[str, Any]], folder: Path) -> list[str]:
    """Train each of some runs in `n_processes` processes, one run after another in one launch.

    Args:
        n_processes: The number of processes.
        runs: The arguments of `triform.train` for each run.
        folder: Where the list of runs and the records of the data are written; see `train_runs.py`.

    Returns:
        The errors of runs that are expected to fail.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    return find_errors(run_script_in_ranks(n_processes, SCRIPT, folder))


def find_errors(log: str) -> list[str]:
    """Return the lines in which triform reports an error, without those of torchrun."""
    return [line for line in log.splitlines() if line.startswith("triform: ")]
