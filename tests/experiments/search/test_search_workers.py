"""Several workers share the trials of a search: none is lost or run twice, also if a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triform.experiments.search.results import collect_trials
from triform.experiments.search.runner import search
from triform.experiments.search.space import read_space
from triform.experiments.search.trial_queue import STARTS, TrialQueue
from triform.training.run_folder import RunFolder
from warm_processes import process_context

N_TRIALS, N_WORKERS = 6, 3
SLOW = ("max_steps = 4, eval_every = 2", "max_steps = 150, eval_every = 50, checkpoint_every = 5")


@pytest.fixture(params=["journal", "postgresql"])
def storage(request: pytest.FixtureRequest) -> str:
    """The URL of a storage; empty: a journal in the folder of the search."""
    return "" if request.param == "journal" else str(request.getfixturevalue("postgresql"))


def trial_of(worker: Any, out: Path) -> Path | None:
    """Return the run folder that a worker trains in and that has a checkpoint."""
    for lock in out.glob("trials/trial-*/seed-0/.lock"):
        try:
            holder = json.loads(lock.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if holder["pid"] == worker.pid and RunFolder(lock.parent).latest_checkpoint():
            return lock.parent
    return None


def kill_in_the_middle_of_a_trial(worker: Any, out: Path) -> Path:
    """Kill a worker that has written a checkpoint and is not finished, and return its run folder."""
    end = time.monotonic() + 400
    while time.monotonic() < end:
        if trial_of(worker, out):
            os.kill(worker.pid, signal.SIGSTOP)
            run_folder = trial_of(worker, out)
            if run_folder and not RunFolder(run_folder).is_finished():
                worker.kill()
                worker.join()
                return run_folder
            os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("the worker was never in the middle of a trial")


def read_events(run_folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (run_folder / "metrics.jsonl").read_bytes().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_no_trial_is_lost_or_run_twice_if_a_worker_is_killed(
    workdir: Path, write_space: Callable[..., Path], storage: str
) -> None:
    path = write_space(("trials = 4", f"trials = {N_TRIALS}"), SLOW)
    options = {"out": "out", "storage": storage, "device": "cpu", "quiet": True}
    workers = [process_context().Process(target=search, args=(path,), kwargs=options) for _ in range(N_WORKERS)]
    for worker in workers:
        worker.start()
    killed_run = kill_in_the_middle_of_a_trial(workers[0], workdir / "out")
    for worker in workers[1:]:
        worker.join(400)
        assert worker.exitcode == 0
    queue = TrialQueue(read_space(path), workdir / "out", storage)
    results = collect_trials(queue)
    assert [(trial.number, trial.state) for trial in results] == [(n, "complete") for n in range(N_TRIALS)]
    assert len({trial.settings["train.lr"] for trial in results}) == N_TRIALS
    starts = {trial.number: trial.user_attrs[STARTS] for trial in queue.trials()}
    killed_number = int(killed_run.parent.name.removeprefix("trial-"))
    assert starts == dict.fromkeys(range(N_TRIALS), 1) | {killed_number: 2}
    for number in range(N_TRIALS):
        run_folder = queue.trial_folder(number) / "seed-0"
        assert len(read_events(run_folder, "start")) == 1
        assert len(read_events(run_folder, "resume")) == (number == killed_number)
        assert [event["step"] for event in read_events(run_folder, "valid")] == [50, 100, 150]
    written = json.loads((workdir / "out" / "search.json").read_text(encoding="utf-8"))
    assert written["counts"] == {"tried": 6, "complete": 6, "pruned": 0, "failed": 0, "refused": 0}
    assert (workdir / "out" / "best.toml").exists()
    assert "secret" not in "".join(file.read_text() for file in (workdir / "out").glob("*.*") if file.is_file())
