"""A run that is killed at any moment and resumed ends with the same bits as one that was never disturbed.

Each attempt is a process of its own, ended by SIGKILL. They come from a server that has torch imported already, so
that the kills fall into the work and not into the start.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from triform.training.run_folder import RunFolder
from warm_processes import start_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and forkserver are not known there")

TINY = (
    "model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.dropout=0.2",
    "train.max_steps=36", "train.eval_every=12", "train.checkpoint_every=3", "train.log_every=5",
)  # fmt: skip
FILES = {
    "classify": (
        "rows.tsv",
        "".join(f"{'good' if n % 3 else 'bad'}\tword{n % 17} thing{n % 5} is {n}\n" for n in range(120)),
    ),
    "generate": ("text.txt", "".join(f"line {n} says {'so ' * (n % 4)}it is {n * 7 % 13}.\n" for n in range(200))),
    "translate": ("pairs.tsv", "".join(f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(150))),
}


KILLED = -signal.SIGKILL


LORA = {"train.lora_rank": "2", "train.lora_dropout": "0.1", "train.layer_decay": "0.9"}


def run_attempt(task: str, data: str, out: str, fault_code: str, base: str) -> None:
    """In a process of its own: begin, or go on with, the run in `out`."""
    from triform.launch import train

    exec(fault_code, {})
    settings = dict(setting.split("=") for setting in TINY)
    if base:  # what it decides is left to it
        settings = {name: value for name, value in settings.items() if name.startswith("train.")}
        settings |= {"train.init_from": base, **LORA}
    train(task, data=data, out=out, seed=3, device="cpu", quiet=True, resume=Path(out).exists(), **settings)


class AttemptRunner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.values():
            (folder / name).write_text(text, encoding="utf-8")

    def run(
        self, task: str, out: Path, *, fault_code: str = "", kill_after: float | None = None, base: str = ""
    ) -> int:
        """The exit code of an attempt that ends by itself or is killed after so many seconds."""
        data = self.folder / FILES[task][0]
        process = start_process(run_attempt, task, str(data), str(out), fault_code, base)
        process.join(kill_after)
        process.kill()
        process.join()
        code = process.exitcode
        process.close()
        assert code in (0, KILLED)
        return code


def assert_same_run(first: Path, second: Path) -> None:
    """Final weights, best weights and optimizer equal bit for bit; the same events, but for clocks."""
    checkpoints = [RunFolder(path).latest_checkpoint() for path in (first, second)]
    assert checkpoints[0] is not None
    assert checkpoints[1] is not None
    assert checkpoints[0].name == checkpoints[1].name
    for name in ("model.safetensors", f"checkpoints/{checkpoints[0].name}/tensors.safetensors"):
        left, right = load_file(first / name), load_file(second / name)
        assert left.keys() == right.keys()
        for key, tensor in left.items():
            assert tensor.equal(right[key]), f"{name}: {key} differs"
    assert read_events(first) == read_events(second)


def read_events(path: Path) -> list[dict[str, object]]:
    timing_fields = ("seconds", "time", "tokens_per_s", "step_ms", "real_share", "peak_memory")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_bytes().splitlines()]
    return [
        {key: value for key, value in row.items() if key not in timing_fields}
        for row in rows
        if row["event"] != "resume"
    ]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> AttemptRunner:
    return AttemptRunner(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, runner: AttemptRunner) -> dict[str, tuple[Path, float]]:
    """A run a task that nothing disturbed, and the seconds it took."""
    folder, runs = tmp_path_factory.mktemp("unbroken"), {}
    assert runner.run("classify", folder / "warm-up") == 0  # it waits for the server to import torch
    for task in FILES:
        started_at = time.monotonic()
        assert runner.run(task, folder / task) == 0
        runs[task] = folder / task, time.monotonic() - started_at
    return runs


# A kill planted inside the writing of a checkpoint: after so many calls of `fsync`, and while old ones are removed.
KILL_DURING_SYNC = """
import os, random, signal
calls, real = random.Random({seed}).randrange(2, 40), os.fsync
def fsync(handle):
    global calls
    calls -= 1
    if not calls: os.kill(os.getpid(), signal.SIGKILL)
    return real(handle)
os.fsync = fsync
"""
# Before a rename: of weights, of the digests that seal them, of checkpoints.
KILL_DURING_SEALING = """
import os, pathlib, random, signal
calls, real = random.Random({seed}).randrange(2, 20), pathlib.Path.replace
def replace(path, target):
    global calls
    calls -= 1
    if not calls: os.kill(os.getpid(), signal.SIGKILL)
    return real(path, target)
pathlib.Path.replace = replace
"""
KILL_DURING_CLEANING = """
import os, shutil, signal, pathlib, random
calls, real = random.Random({seed}).randrange(2, 12), shutil.rmtree
def rmtree(path, *rest, **more):
    global calls
    calls -= 1
    if not calls:
        for file in pathlib.Path(path).glob("state.json"): file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(path, *rest, **more)
shutil.rmtree = rmtree
"""


@pytest.mark.parametrize("task", FILES)
def test_killed_while_a_checkpoint_is_written_a_run_still_ends_with_the_same_bits(
    task: str, tmp_path: Path, runner: AttemptRunner, unbroken: dict[str, tuple[Path, float]]
) -> None:
    out, kills = tmp_path / "run", 0
    for seed in range(2):
        for fault in (KILL_DURING_SYNC, KILL_DURING_SEALING, KILL_DURING_CLEANING):
            kills += runner.run(task, out, fault_code=fault.format(seed=seed)) == KILLED
    assert kills >= 4
    assert runner.run(task, out) == 0
    assert_same_run(unbroken[task][0], out)


def test_killed_adapters_still_end_with_the_same_bits(
    tmp_path: Path, runner: AttemptRunner, unbroken: dict[str, tuple[Path, float]]
) -> None:
    base, uninterrupted, out, kills = str(unbroken["classify"][0]), tmp_path / "straight", tmp_path / "run", 0
    assert runner.run("classify", uninterrupted, base=base) == 0
    for fault in (KILL_DURING_SYNC, KILL_DURING_SEALING, KILL_DURING_CLEANING):
        kills += runner.run("classify", out, fault_code=fault.format(seed=1), base=base) == KILLED
    assert kills >= 2
    assert runner.run("classify", out, base=base) == 0
    assert_same_run(uninterrupted, out)
    assert (uninterrupted / "adapter.safetensors").read_bytes() == (out / "adapter.safetensors").read_bytes()


@pytest.mark.parametrize("task", FILES)
def test_killed_at_random_moments_a_run_still_ends_with_the_same_bits(
    task: str, tmp_path: Path, runner: AttemptRunner, unbroken: dict[str, tuple[Path, float]]
) -> None:
    uninterrupted, seconds = unbroken[task]
    rng, out, kills = random.Random(task), tmp_path / "run", 0
    while kills < 5:
        if runner.run(task, out, kill_after=rng.uniform(0.05, 0.5 * seconds)) == KILLED:
            kills += 1
        else:  # it finished too soon, as the machine is faster now than when the seconds were counted: start anew
            shutil.rmtree(out)
            kills, seconds = 0, 0.7 * seconds
    assert runner.run(task, out) == 0
    assert_same_run(uninterrupted, out)
