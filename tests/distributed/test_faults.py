"""A process that is killed, hangs or stops ends all of them with one line."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import SCRIPT, find_errors, serve_store, torchrun, wait_for
from safetensors.torch import load_file

import triform
from triform import world
from triform.errors import RunInterruptedError
from triform.training.distributed_step import PartitionedTrainStep
from triform.training.trainer import Trainer
from warm_processes import run_ranks, run_script, start_process

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


def launch(n_processes: int, folder: Path, runs: list[dict[str, Any]], *options: str) -> Any:
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    environment = {"TRIFORM_TIMEOUT": "60"}
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


def train_alone(run: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch, stop_at: int = -1) -> None:
    """Train in this process, record the rows as `train_runs.py` does, and stop after a step as Ctrl-C does."""
    collate_part, original_step = PartitionedTrainStep.collate_part, Trainer.step

    def record_part(self: PartitionedTrainStep, indices: Any, part: int, n_parts: int) -> Any:
        rows = np.array_split(indices, n_parts)[part].tolist()
        with (folder / "seen-alone.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.n_steps, "attempt": 0, "rows": rows}) + "\n")
        return collate_part(self, indices, part, n_parts)

    def step_then_stop(self: Trainer) -> None:
        original_step(self)
        if self.progress.step == stop_at:
            self.stop()

    with patch.context() as context:
        context.setattr(PartitionedTrainStep, "collate_part", record_part)
        context.setattr(Trainer, "step", step_then_stop)
        arguments = {key: value for key, value in run.items() if key != "name"}
        triform.train(**arguments, out=str(folder / run["name"]), device="cpu", quiet=True)


def test_a_run_survives_a_killed_process_a_stop_and_other_numbers_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.csv")
    exact = build_run(tmp_path, **{"train.exact": True})
    (tmp_path / "expected").mkdir()
    train_alone(exact, tmp_path / "expected", monkeypatch)
    with pytest.raises(RunInterruptedError, match="stopped at step 3, and everything is saved"):
        train_alone(exact, tmp_path, monkeypatch, stop_at=3)
    faults = [
        {"step": 6, "rank": 1, "fault": "kill"},
        {"step": 11, "rank": 1, "fault": "terminate", "attempt": 1},
    ]
    continued = exact | {"resume": True}
    stopped = launch(2, tmp_path, [continued | {"faults": faults, "quiet": False}], "--max-restarts=1")
    assert stopped.returncode != 0
    assert stopped.stderr.count(f"{STEPS} steps, 2 processes (train.exact)\n") == 2  # one process of each attempt
    errors = find_errors(stopped.stderr)
    assert errors[0].startswith("triform: rank 1 has ended unexpectedly")
    assert errors[1].startswith("triform: stopped at step 13, and everything is saved; continue with: torchrun")
    assert len(errors) == 2
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name == "step-000000013"
    train_alone(continued, tmp_path, monkeypatch)
    for folder in (tmp_path / "expected", tmp_path):
        for epoch in count_rows(folder):
            assert epoch == Counter(range(N_ROWS))
    weights, expected = (
        load_file(folder / "run" / "model.safetensors") for folder in (tmp_path, tmp_path / "expected")
    )
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


def test_a_process_that_hangs_is_named_after_the_timeout(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv")
    hanging = build_run(tmp_path, faults=[{"step": 2, "rank": 1, "fault": "hang"}])
    (tmp_path / "runs.json").write_text(json.dumps([hanging]), encoding="utf-8")
    log_file = tmp_path / "log.txt"
    environment = {"TRIFORM_TIMEOUT": "10"}
    exit_codes = run_ranks(2, run_script, str(SCRIPT), str(tmp_path), log_file=log_file, environment=environment)
    assert exit_codes[0]
    (error,) = find_errors(log_file.read_text(encoding="utf-8"))
    assert "not answered for 10 seconds (TRIFORM_TIMEOUT)" in error


def test_processes_whose_store_does_not_answer_end_with_one_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv")
    faults = [{"step": 5, "rank": 0, "fault": "freeze store"}]
    endless = build_run(tmp_path, faults=faults) | {"train.max_steps": 10**6, "train.eval_every": 10**6}
    endless |= {"train.checkpoint_every": 10**6}
    (tmp_path / "runs.json").write_text(json.dumps([endless]), encoding="utf-8")
    log_file, port_file = tmp_path / "log.txt", tmp_path / "store.port"
    store = start_process(serve_store, str(tmp_path))
    try:
        wait_for(port_file.exists)
        port = {"MASTER_PORT": port_file.read_text()}
        exit_codes = run_ranks(
            2, run_script, str(SCRIPT), str(tmp_path), log_file=log_file, environment=port, seconds=120
        )
    finally:
        store.kill()
        store.join()
    assert exit_codes[0] == 2
    (error,) = find_errors(log_file.read_text(encoding="utf-8"))
    assert error.startswith(f"triform: rank 0 has had no answer from 127.0.0.1:{port['MASTER_PORT']} ")


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
