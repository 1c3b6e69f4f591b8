"""A process that is killed, hangs or stops ends all of them with one line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import SCRIPT, child_environment, torchrun, triform_errors
from safetensors.torch import load_file

import triform
from triform import world
from triform.errors import RunInterruptedError

N_ROWS, BATCH_SIZE, STEPS = 45, 5, 18  # two epochs of nine steps


def write_rows(path: Path) -> None:
    path.write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n % 7} of {n}\n" for n in range(N_ROWS)))


def build_run(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "task": "classify",
        "data": str(folder / "rows.csv"),
        "valid": str(folder / "rows.csv"),
        "model": {"d_model": 16, "d_ff": 32, "n_layers": 1, "n_heads": 2, "dropout": 0.1},
        "train.batch_size": BATCH_SIZE,
        "train.max_steps": STEPS,
        "train.eval_every": STEPS,
        "train.checkpoint_every": 4,
        "train.log_every": 3,
        **settings,
    }


def launch(n_processes: int, folder: Path, runs: list[dict[str, Any]], *options: str, timeout: str = "60") -> Any:
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    environment = {"TRIFORM_TIMEOUT": timeout}
    return torchrun(
        n_processes, str(SCRIPT), str(folder), options=("--standalone", *options), environment=environment
    )


def count_rows(folder: Path) -> list[Counter[int]]:
    """Return how often each row of each epoch was computed, in the last attempt of each step."""
    records = [json.loads(line) for path in folder.glob("seen-*.jsonl") for line in path.read_text().splitlines()]
    last_attempt = {record["step"]: 0 for record in records}
    for record in records:
        last_attempt[record["step"]] = max(last_attempt[record["step"]], record["attempt"])
    epochs = [Counter[int](), Counter[int]()]
    for record in records:
        if record["attempt"] == last_attempt[record["step"]]:
            epochs[record["step"] // (STEPS // 2)].update(record["rows"])
    return epochs


def test_a_run_survives_a_killed_process_a_stop_and_another_number_of_processes(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv")
    exact = build_run(tmp_path, **{"train.exact": True})
    triform.train(**{key: value for key, value in exact.items() if key != "name"}, out=str(tmp_path / "alone"))
    faults = [
        {"step": 6, "rank": 1, "fault": "kill"},
        {"step": 11, "rank": 1, "fault": "terminate", "attempt": 1},
    ]
    stopped = launch(2, tmp_path, [exact | {"faults": faults, "quiet": False}], "--max-restarts=1")
    assert stopped.returncode != 0
    assert stopped.stderr.count(f"{STEPS} steps, 2 processes (train.exact)\n") == 2  # one process of each attempt
    errors = triform_errors(stopped)
    assert errors[0].startswith("triform: rank 1 has ended unexpectedly")
    assert errors[1].startswith("triform: stopped at step 13, and everything is saved; continue with: torchrun")
    assert len(errors) == 2
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name == "step-000000013"
    (tmp_path / "runs.json").write_text(json.dumps([exact | {"resume": True}]), encoding="utf-8")
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True, env=child_environment())
    for epoch in count_rows(tmp_path):
        assert epoch == Counter(range(N_ROWS))
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


def test_a_process_that_hangs_is_named_after_the_timeout(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv")
    hanging = build_run(tmp_path, faults=[{"step": 2, "rank": 1, "fault": "hang"}])
    completed = launch(2, tmp_path, [hanging], timeout="3")
    assert completed.returncode != 0
    (error,) = triform_errors(completed)
    assert "not answered for 3 seconds (TRIFORM_TIMEOUT)" in error


def test_a_stop_while_processes_wait_for_each_other_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)

    def stop(_value: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world, "gather_values_slowly", stop)
    with pytest.raises(RunInterruptedError) as caught, world.join_world(torch.device("cpu")):
        pass
    assert caught.value.is_reported
    assert capsys.readouterr().err == "triform: interrupted\n"
