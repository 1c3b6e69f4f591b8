"""A run that is killed at any moment and resumed ends with the same bits as one that was never disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from triform.train.folder import RunFolder

TINY = (
    "model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.dropout=0.2",
    "train.max_steps=60", "train.eval_every=20", "train.checkpoint_every=3", "train.log_every=5",
)  # fmt: skip
FILES = {
    "classify": (
        "rows.tsv",
        "".join(f"{'good' if n % 3 else 'bad'}\tword{n % 17} thing{n % 5} is {n}\n" for n in range(120)),
    ),
    "generate": ("text.txt", "".join(f"line {n} says {'so ' * (n % 4)}it is {n * 7 % 13}.\n" for n in range(200))),
    "translate": ("pairs.tsv", "".join(f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(150))),
}


def command(task: str, folder: Path, out: Path, *more: str) -> list[str]:
    name, text = FILES[task]
    data = folder / name
    if not data.exists():
        data.write_text(text, encoding="utf-8")
    sets = [part for setting in TINY for part in ("--set", setting)]
    return [
        sys.executable, "-m", "triform", "train", task, "--data", str(data), "--out", str(out),
        "--device", "cpu", "--seed", "3", *sets, *more,
    ]  # fmt: skip


def run(arguments: list[str], kill_after: float | None = None, faults: str = "") -> int:
    """Run to the end, or kill without warning after so many seconds; `faults` is run before the command."""
    if faults:
        main = "from triform.cli.main import main; main()"
        arguments = [arguments[0], "-c", f"{faults}\n{main}", *arguments[3:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            _, error = process.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            return -signal.SIGKILL
    assert process.returncode in (0, -signal.SIGKILL), error.decode()
    return process.returncode


def same_run(one: Path, other: Path) -> None:
    """Final weights, best weights and optimizer equal bit for bit; the same events, but for clocks."""
    last = [RunFolder(path).latest_checkpoint() for path in (one, other)]
    assert last[0] is not None
    assert last[1] is not None
    assert last[0].name == last[1].name
    for name in ("model.safetensors", f"checkpoints/{last[0].name}/tensors.safetensors"):
        left, right = load_file(one / name), load_file(other / name)
        assert left.keys() == right.keys()
        for key, tensor in left.items():
            assert tensor.equal(right[key]), f"{name}: {key} differs"
    assert events(one) == events(other)


def events(path: Path) -> list[dict[str, object]]:
    clocks = ("seconds", "tokens_per_s", "time")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in row.items() if key not in clocks} for row in rows if row["event"] != "resume"
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("unbroken")
    for task in FILES:
        assert run(command(task, folder, folder / task)) == 0
    return {task: folder / task for task in FILES}


# A kill planted inside the writing of a checkpoint: after so many calls of `fsync`, and while old ones are removed.
DURING_SYNC = """
import os, random, signal
calls, real = random.Random({seed}).randrange(2, 40), os.fsync
def fsync(handle):
    global calls
    calls -= 1
    if not calls: os.kill(os.getpid(), signal.SIGKILL)
    return real(handle)
os.fsync = fsync
"""
DURING_CLEANING = """
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
    task: str, tmp_path: Path, unbroken: dict[str, Path]
) -> None:
    data, out = unbroken[task].parent, tmp_path / "run"
    kills = 0
    for seed, fault in enumerate((DURING_SYNC, DURING_CLEANING, DURING_SYNC)):
        more = ("--resume",) if out.exists() else ()
        kills += run(command(task, data, out, *more), faults=fault.format(seed=seed)) == -signal.SIGKILL
    assert kills >= 2
    assert run(command(task, data, out, "--resume")) == 0
    same_run(unbroken[task], out)


@pytest.mark.parametrize("task", FILES)
def test_killed_at_random_moments_a_run_still_ends_with_the_same_bits(
    task: str, tmp_path: Path, unbroken: dict[str, Path]
) -> None:
    data, out = unbroken[task].parent, tmp_path / "run"
    rng = random.Random(task)
    began = time.monotonic()
    for _ in range(4):
        more = ("--resume",) if out.exists() else ()
        run(command(task, data, out, *more), kill_after=rng.uniform(1.5, 5.0))
        if time.monotonic() - began > 40:
            break
    assert run(command(task, data, out, "--resume")) == 0
    same_run(unbroken[task], out)
