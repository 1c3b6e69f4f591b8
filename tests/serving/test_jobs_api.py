"""Training jobs over HTTP: a process that writes an ordinary run folder and survives the server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.io.locks import folder_lock
from triform.serving import ServerOptions, create_app
from triform.serving.job_process import describe_exit, read_process_start

TINY = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "train.batch_size": 4,
    "train.log_every": 1,
    "train.eval_every": 200,
}
SECONDS = 120


def connect(folder: Path, **options: Any) -> TestClient:
    server_options = ServerOptions(folder=folder, page=True, device="cpu", **options)
    return TestClient(create_app(server_options), base_url="http://127.0.0.1:8000")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs. Processes that a failed test leaves behind are ended."""
    path = tmp_path / "runs"
    path.mkdir()
    yield path
    client = connect(path)
    for job in client.get("/api/jobs").json()["jobs"]:
        if job["can_stop"]:
            client.post(f"/api/jobs/{job['id']}/stop")


def find_job(client: TestClient, name: str) -> dict[str, Any]:
    [job] = [job for job in client.get("/api/jobs").json()["jobs"] if job["id"] == name]
    return dict(job)


def wait_for(client: TestClient, name: str, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while not is_reached(job := find_job(client, name)):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


def has_ended(job: dict[str, Any]) -> bool:
    return job["state"] in ("finished", "stopped", "failed")


def start(client: TestClient, name: str, **changes: Any) -> dict[str, Any]:
    body = {"task": "classify", "data": "builtin:reviews", "name": name, "settings": TINY, **changes}
    answer = client.post("/api/jobs", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refuse(client: TestClient, **changes: Any) -> tuple[int, str]:
    body = {"task": "classify", "data": "builtin:reviews", "settings": TINY, **changes}
    answer = client.post("/api/jobs", json=body)
    return answer.status_code, answer.json()["error"]


def test_a_job_is_stopped_resumed_and_finished_while_servers_come_and_go(folder: Path) -> None:
    first = connect(folder)
    job = start(first, "", preset="tiny", settings=TINY | {"train.max_steps": 600, "train.baseline": False})
    assert (job["id"], job["state"]) == ("classify-reviews", "starting")
    assert job["command"].startswith("triform train classify --data builtin:reviews --preset tiny --set model")
    name = job["id"]
    wait_for(first, name, lambda job: job["state"] == "training")
    [record] = (folder / ".studio" / "jobs").glob("*.json")
    pid = json.loads(record.read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)  # so that it does not finish before it is asked to stop
    assert refuse(first, name="second") == (
        409,
        f"{name} is training; one job trains at a time, so stop it or wait",
    )
    assert os.getsid(pid) == pid  # Ctrl-C in the terminal of the server does not reach it
    metrics = folder / name / "metrics.jsonl"

    second = connect(folder)
    assert find_job(second, name)["state"] == "training"
    os.kill(pid, signal.SIGCONT)
    while not metrics.exists() or '"event": "train"' not in metrics.read_text():
        time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP)
    assert second.post(f"/api/jobs/{name}/stop").json() == {"stopping": name}
    assert second.post(f"/api/jobs/{name}/stop").status_code == 200  # a second signal would not save
    os.kill(pid, signal.SIGCONT)
    job = wait_for(second, name, has_ended)
    assert (job["state"], job["can_resume"]) == ("stopped", True)
    assert "everything is saved" in job["log"]
    assert second.post(f"/api/jobs/{name}/stop").status_code == 409
    assert wait_for(first, name, has_ended)["state"] == "stopped"

    third = connect(folder)
    job = third.post(f"/api/jobs/{name}/resume").json()
    assert job["command"] == f"triform train classify --out {folder / name} --resume --device cpu"
    job = wait_for(third, name, has_ended)
    assert (job["state"], job["error"], job["can_stop"], job["can_resume"]) == ("finished", "", False, False)
    assert "run folder:" in job["log"]
    [run] = third.get("/api/runs").json()["runs"]
    assert (run["id"], run["state"], run["step"]) == (name, "finished", 600)
    assert find_job(connect(folder), name)["state"] == "finished"
    error = third.post(f"/api/jobs/{name}/resume").json()["error"]
    assert error == f"{name} is finished, so there is nothing to resume"
    assert refuse(third, name=name) == (409, f"there is already a folder {name!r}; choose another name")


def test_a_job_that_cannot_start_shows_the_error_of_the_command(folder: Path) -> None:
    client = connect(folder)
    start(client, "broken", settings={"data.text_column": "body"}, data="builtin:numbers")
    job = wait_for(client, "broken", has_ended)
    assert job["state"] == "failed"
    assert job["error"] == "builtin:numbers: this set is not for classify; use builtin:reviews"
    assert not job["can_resume"]
    assert not (folder / "broken").exists()
    assert find_job(connect(folder), "broken")["error"] == job["error"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task": "clasify"}, "unknown task 'clasify'; did you mean 'classify'?"),
        ({"settings": {"model.d_modle": 8}}, "unknown setting 'model.d_modle'; did you mean 'model.d_model'?"),
        ({"settings": {"model.d_model": "wide"}}, "model.d_model"),
        ({"settings": {"model.d_model": -1}}, "model.d_model"),
        ({"settings": {"model.d_model": 10, "model.n_heads": 3}}, "n_heads"),
        ({"settings": {"data.train": "/etc/passwd"}}, "data.train cannot be set here"),
        ({"settings": {"train.init_from": "/etc"}}, "train.init_from cannot be set here"),
        ({"settings": {"train.distill_from": "/etc"}}, "train.distill_from cannot be set here"),
        ({"preset": "tinny"}, "unknown preset 'tinny'; did you mean 'tiny'?"),
        ({"preset": "gpt2-small"}, "preset 'gpt2-small' is for generate, not classify"),
        ({"name": "../outside"}, "'../outside' is no valid name for a run"),
        ({"name": ".hidden"}, "'.hidden' is no valid name for a run"),
        ({"name": "a/b"}, "'a/b' is no valid name for a run"),
        ({"data": ""}, "give either data, or both source and target"),
        ({"data": "", "source": "upload:0123456789abcdef"}, "give either data, or both source and target"),
        ({"data": "/etc/passwd"}, "'/etc/passwd' is not upload:ID or builtin:NAME"),
        ({"data": "upload:../../secret"}, "there is no upload '../../secret'; upload the file again"),
        ({"data": "upload:0123456789abcdef"}, "there is no upload '0123456789abcdef'; upload the file again"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(folder: Path, changes: dict[str, Any], expected: str) -> None:
    status, error = refuse(connect(folder), **changes)
    assert status in (400, 404)
    assert expected in error
    assert not (folder / ".studio" / "jobs").exists()


def test_a_job_that_cannot_be_recorded_is_refused_and_does_not_run(folder: Path, full_disk: Any) -> None:
    client = connect(folder)
    upload_id = client.post("/api/uploads?name=a.csv", content="text,label\ngood,a\nbad,b\n").json()["id"]
    for data in ("builtin:reviews", f"upload:{upload_id}"):
        with full_disk(0):
            status, error = refuse(client, name="new", data=data)
        assert (status, error.startswith("the disk of the server is full")) == (507, True)
        assert client.get("/api/jobs").json()["jobs"] == []
        assert sorted(path.name for path in (folder / ".studio").iterdir()) == ["uploads"]
    shutil.rmtree(folder / ".studio")
    (folder / ".studio").write_text("a file in place of the folder")
    status, error = refuse(client, name="new")
    assert (status, str(folder / ".studio") in error) == (503, True)


def test_only_one_of_several_studios_accepts_a_job(folder: Path) -> None:
    clients = [connect(folder) for _ in range(4)]
    start_together = threading.Barrier(len(clients))

    def post(number: int) -> tuple[int, str]:
        body = {"task": "classify", "data": "builtin:reviews", "name": f"run-{number % 2}"}
        start_together.wait()
        settings = TINY | {"train.max_steps": 100_000, "train.baseline": False}
        answer = clients[number].post("/api/jobs", json=body | {"settings": settings})
        return answer.status_code, answer.json().get("error", "")

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(post, range(len(clients))))
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409]
    assert all("one job trains at a time" in error for status, error in answers if status == 409)
    assert len(clients[0].get("/api/jobs").json()["jobs"]) == 1


def test_a_read_only_server_and_one_without_a_folder_start_nothing(folder: Path, runs_folder: Path) -> None:
    read_only = connect(folder, read_only=True)
    assert refuse(read_only) == (403, "this server is read-only, so it does not train")
    assert read_only.post("/api/jobs/reviews/stop").status_code == 403
    assert read_only.post("/api/jobs/reviews/resume").status_code == 403
    assert read_only.get("/api/jobs").json() == {"can_train": False, "jobs": []}
    options = ServerOptions(runs={"reviews": runs_folder / "reviews"}, page=True, device="cpu")
    without_folder = TestClient(create_app(options), base_url="http://127.0.0.1:8000")
    assert refuse(without_folder)[0] == 403
    outside = connect(folder, runs={"reviews": runs_folder / "reviews"})
    answer = outside.post("/api/jobs/reviews/resume")
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        "'reviews' is not in the folder of runs, so the server does not change it",
    )
    assert outside.post("/api/jobs/nothing/resume").status_code == 404
    assert outside.post("/api/jobs/..%2Freviews/stop").status_code == 404


def test_only_a_process_that_trains_on_this_machine_is_stopped(folder: Path, runs_folder: Path) -> None:
    shutil.copytree(runs_folder / "reviews", folder / "reviews")
    client = connect(folder)
    assert client.post("/api/jobs/reviews/stop").json()["error"] == "reviews is not training"
    with folder_lock(folder / "reviews", "deleting a run"):
        error = client.post("/api/jobs/reviews/stop").json()["error"]
        assert error.endswith("which is not training")
        lock_file = folder / "reviews" / ".lock"
        content = lock_file.read_text()
        lock_file.write_text(
            content.replace("deleting a run", "training classify").replace(socket.gethostname(), "?")
        )
        assert client.post("/api/jobs/reviews/stop").json()["error"].endswith("stop it on that machine")


# It holds the lock of a run as a training process does, and prints a line for each signal.
HOLDER = """
import signal, sys, time
from pathlib import Path
from triform.io.locks import folder_lock
signal.signal(signal.SIGTERM, lambda *_: print("signal", flush=True))
with folder_lock(Path(sys.argv[1]), "training classify"):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_run_that_the_command_line_trains_is_asked_once_to_stop(folder: Path, runs_folder: Path) -> None:
    shutil.copytree(runs_folder / "reviews", folder / "reviews")
    command = [sys.executable, "-c", HOLDER, str(folder / "reviews")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        client = connect(folder)
        assert client.get("/api/runs/reviews").json()["can_stop"]
        for _ in range(3):
            assert client.post("/api/jobs/reviews/stop").status_code == 200
        assert client.post("/api/jobs/reviews/resume").json()["error"].startswith("reviews is training")
        assert process.stdout.readline() == "signal\n"
        process.kill()
        assert process.stdout.read() == ""
    assert client.get("/api/jobs").json()["jobs"] == []


def test_a_process_that_ended_and_one_with_its_number_are_told_apart(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process_start = read_process_start(process.pid)
        assert process_start
        record = {"run": "a", "task": "classify", "arguments": ["train"], "started": "2026-01-01T00:00:00"}
        record |= {"pid": process.pid, "process_start": process_start}
        (folder / ".studio" / "jobs").mkdir(parents=True)
        path = folder / ".studio" / "jobs" / "a.json"
        path.write_text(json.dumps(record))
        assert find_job(connect(folder), "a")["state"] == "starting"
        path.write_text(json.dumps(record | {"process_start": "1"}))
        assert find_job(connect(folder), "a")["state"] == "failed"
        path.write_text(json.dumps(record))
        process.kill()
        wait_for(connect(folder), "a", has_ended)  # although the process was not waited for
    stopped = record | {"exit_code": -signal.SIGTERM, "stop_requested": True}  # before it could handle the signal
    path.write_text(json.dumps(stopped))
    assert find_job(connect(folder), "a")["state"] == "stopped"
    path.write_text(json.dumps(stopped | {"stop_requested": False}))
    assert find_job(connect(folder), "a")["error"] == "the process was ended by the signal SIGTERM"
    path.write_text(json.dumps(record | {"exit_code": -9}))
    assert find_job(connect(folder), "a")["error"] == "the process was ended by the signal SIGKILL"
    path.write_text("{")
    assert connect(folder).get("/api/jobs").json()["jobs"] == []


@pytest.mark.skipif(shutil.which("ps") is None, reason="ps is not installed")
def test_without_the_folder_proc_the_start_of_a_process_is_asked_of_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path != Path("/proc/self/stat") and exists(path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process_start = read_process_start(process.pid)
        assert str(datetime.now().year) in process_start  # a date, not a number of ticks
        assert read_process_start(process.pid) == process_start
        process.kill()
    assert read_process_start(process.pid) == ""


def test_a_signal_without_a_name_is_described_by_its_number() -> None:
    assert describe_exit(-200, "triform: not this\n") == "the process was ended by the signal 200"
