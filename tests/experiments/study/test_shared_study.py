"""Several processes that run one study share its runs, and continue the runs of a process that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from triform.errors import FolderInUseError
from triform.experiments import engine
from triform.experiments.study import runner
from triform.io.locks import folder_lock
from triform.training.run_folder import RunFolder

STUDY = """
task = "classify"
seeds = 2
[common]
data.train = "rows.tsv"
model = { d_model = 8, n_layers = 1, n_heads = 2 }
train = { max_steps = 30, batch_size = 4, checkpoint_every = 10, eval_every = 15 }
[variants.plain]
[variants.narrow]
model.window = 2
[tests]
more = "more.tsv"
"""
# A worker that stops itself when its first checkpoint is on disk: it keeps its lock and makes no progress.
STOPPED_WORKER = """
import os, signal, time
from pathlib import Path
from triform.cli.main import main
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer
step = Trainer.step
def stop_then_step(trainer):
    if trainer.progress.step == 15:
        while not RunFolder(Path("out/plain/seed-0")).latest_checkpoint():
            time.sleep(0.01)  # another thread writes it
        os.kill(os.getpid(), signal.SIGSTOP)
    step(trainer)
Trainer.step = stop_then_step
main()
"""
RUNS = [(variant, seed) for variant in ("plain", "narrow") for seed in (0, 1)]


def wait_for(condition: Any, description: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {description} after {seconds} seconds"
        time.sleep(0.02)


def read_events(folder: Path, name: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [event for event in events if event["event"] == name]


def test_a_run_of_a_worker_that_dies_is_continued_and_no_run_is_trained_twice(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "study.toml").write_text(STUDY, encoding="utf-8")
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.05)
    options = ["compare", "study.toml", "--out", "out", "--device", "cpu", "--workers", "1", "--quiet"]
    other = subprocess.Popen([sys.executable, "-c", STOPPED_WORKER, *options], cwd=workdir)
    folders = {run: RunFolder(workdir / "out" / run[0] / f"seed-{run[1]}") for run in RUNS}
    locked_run = folders[RUNS[0]]
    try:
        wait_for(lambda: os.waitpid(other.pid, os.WNOHANG | os.WUNTRACED)[0], "stop of the other worker")
        stopped_at = locked_run.latest_checkpoint()

        def kill_when_the_rest_is_done() -> None:
            wait_for(
                lambda: all((folders[run].path / "report.html").exists() for run in RUNS[1:]),
                "end of the other runs",
            )
            other.kill()

        killer = threading.Thread(target=kill_when_the_rest_is_done)
        killer.start()
        result = runner.compare("study.toml", out="out", by_seed=True, device="cpu", quiet=True)
        killer.join()
    finally:
        other.kill()
        other.wait()
    assert stopped_at is not None
    assert all(len(read_events(folder.path, "start")) == 1 for folder in folders.values())
    assert read_events(locked_run.path, "resume")[0]["step"] >= 10
    assert [(run.variant, run.seed, bool(run.failure)) for run in result.runs] == [(*run, False) for run in RUNS]
    assert all({"validation", "more"} <= set(run.metric_values) for run in result.runs)
    assert {summary.variant: summary.n_runs for summary in result.summaries} == {"plain": 2, "narrow": 2}


def test_a_worker_leaves_out_what_another_one_has_locked(workdir: Path, spec: dict[str, Any]) -> None:
    plan = runner.read_study(spec)
    [first, *_] = runner._variant_specs(plan, workdir / "out")
    options = runner.RunOptions(device="cpu", quiet=True)
    run_folder = first.folder / f"seed-{plan.seeds[0]}"
    with folder_lock(run_folder, "training"):
        assert not engine._finish_unit(first, engine.Evaluation(), options, by_seed=False)
        assert not any(first.folder.glob("seed-*/config.toml"))
        with pytest.raises(FolderInUseError, match="is in use by process"), RunFolder(run_folder).lock("training"):
            pass
    assert engine._finish_unit(first, engine.Evaluation(), options, by_seed=False)
    assert len(list(first.folder.glob("seed-*/model.safetensors"))) == len(plan.seeds)
