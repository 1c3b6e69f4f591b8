"""A run folder of somebody else: what is in it may be a link to a file outside of it, or a pipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from same_runs import MODEL
from starlette.testclient import TestClient

import triform
from triform.errors import CheckpointError, RunInterruptedError, TriformError
from triform.reporting.run_report import write_report
from triform.serving import ServerOptions, create_app
from triform.sklearn import TextClassifier
from triform.training.callbacks import Callback, Event

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="on Windows, links need a right")

CHECKPOINT = "checkpoints/step-000000002"
FILES = (
    *("config.toml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "sources.json", "digests.json"),
    *(f"{CHECKPOINT}/{name}" for name in ("state.json", "tensors.safetensors", "digests.json")),
    *(f"tokens/{split}{end}" for split in ("train", "valid") for end in (".bin", ".idx", ".values.npy")),
)
FOLDERS = ("checkpoints", CHECKPOINT, "tokens")
LATER = (".lock", "report.html", "adapter.safetensors", "data_copies", "tensorboard", "wandb")
DANGLING = ("config.toml", "metrics.jsonl", "checkpoints", "tokens/train.values.npy", ".lock", "data_copies")
CASES = [(name, kind) for name in (*FILES, *FOLDERS, *LATER) for kind in ("link", "pipe")]
CASES += [(name, "dangling link") for name in DANGLING]
SETTINGS: dict[str, Any] = {"model": MODEL, "train": {"max_steps": 8, "eval_every": 2, "checkpoint_every": 2}}


def train(table: str, out: Path, **options: Any) -> triform.Run:
    return triform.train("classify", data=table, out=str(out), device="cpu", quiet=True, **SETTINGS | options)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    path.write_text("".join(f"{'good' if n % 3 else 'bad'}\tword{n % 11} {n}\n" for n in range(90)))
    return str(path)


@pytest.fixture(scope="module")
def stopped_run(table: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended after its first checkpoint: it has a model, tokens, and events that a resume removes."""

    class StopAtStep4(Callback):
        def on_event(self, event: Event) -> None:
            if event["event"] == "valid" and event["step"] == 4:
                raise KeyboardInterrupt

    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(RunInterruptedError):
        train(table, path, callbacks=[StopAtStep4()])
    names = {entry.relative_to(path).as_posix() for entry in path.rglob("*")}
    assert names == {*FILES, *FOLDERS}, "a run has a file that these tests do not know"
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / ".notes.4194303.part").write_text("which looks like a file that a process has left behind")
    return folder


def replace(path: Path, kind: str, outside: Path) -> None:
    """Put a link or a pipe in the place of a file or a folder, which is outside from now on."""
    target = outside / "target"
    if path.exists() and kind == "link":
        path.rename(target)
    elif kind == "link":
        target.mkdir() if not path.suffix and path.name != ".lock" else target.write_text("content")
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_links_and_pipes_in_a_run_folder_are_refused(
    stopped_run: Path, table: str, tmp_path: Path, outside: Path, name: str, kind: str
) -> None:
    run = Path(shutil.copytree(stopped_run, tmp_path / "runs" / "run"))
    shutil.copytree(stopped_run, tmp_path / "runs" / "good")
    replace(run / name, kind, outside)
    before = snapshot(outside)
    uses: list[Callable[[], object]] = [
        lambda: train(table, run, resume=True),
        lambda: train(table, run, overwrite=True),
        lambda: triform.load(run),
        lambda: triform.load(run, checkpoint="latest"),
        lambda: write_report(run),
    ]
    for use in uses:
        with pytest.raises(TriformError) as caught:
            use()
        assert f"{run / name} is a {kind.split()[-1]}" in str(caught.value)
        assert "\n" not in str(caught.value)
    options = ServerOptions(folder=run.parent, device="cpu", page=True)
    with TestClient(create_app(options), base_url="http://127.0.0.1:8000") as client:
        listed = {entry["id"]: entry for entry in client.get("/api/runs").json()["runs"]}
        assert listed["good"]["state"] == "stopped"
        assert listed["run"]["state"] == "damaged"
        assert str(run / name) in listed["run"]["error"]
        assert client.get("/api/runs/run/metrics").status_code == 200 or name == "config.toml"
        assert client.delete("/api/runs/run", headers={"Origin": "http://127.0.0.1:8000"}).status_code in (404, 409)
    assert snapshot(outside) == before


def test_a_link_that_appears_while_a_run_trains_is_not_written_through(
    stopped_run: Path, table: str, tmp_path: Path, outside: Path
) -> None:
    run = Path(shutil.copytree(stopped_run, tmp_path / "run"))

    class ReplaceMetrics(Callback):
        def on_event(self, event: Event) -> None:
            if event["event"] == "valid" and event["step"] == 6:
                replace(run / "metrics.jsonl", "link", outside)
                self.before = snapshot(outside)

    callback = ReplaceMetrics()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a link"):
        train(table, run, resume=True, callbacks=[callback])
    assert snapshot(outside) == callback.before


def test_links_with_temporary_names_are_not_written_through(
    stopped_run: Path, table: str, tmp_path: Path, outside: Path
) -> None:
    run = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    (outside / "notes").write_text("notes")
    before = snapshot(outside)
    for name in ("config.toml", "digests.json", "model.safetensors", "metrics.jsonl", "report.html"):
        path = run / name
        path.with_name(f".{path.name}.{os.getpid()}.part").symlink_to(outside / "notes")
    train(table, run, overwrite=True)
    assert snapshot(outside) == before
    assert triform.load(run).path == run


def test_an_estimator_is_not_saved_through_links(
    stopped_run: Path, table: str, tmp_path: Path, outside: Path
) -> None:
    estimator = TextClassifier.from_run(train(table, tmp_path / "good").path, device="cpu")
    run = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    replace(run / "digests.json", "dangling link", outside)
    before = snapshot(outside)
    with pytest.raises(CheckpointError, match=r"digests\.json is a link"):
        estimator.save(run, overwrite=True)
    assert snapshot(outside) == before


def test_the_path_to_a_run_folder_may_contain_links(stopped_run: Path, table: str, tmp_path: Path) -> None:
    shutil.copytree(stopped_run, tmp_path / "disk" / "run")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "runs" / "latest").symlink_to("run")
    (tmp_path / "disk" / "run" / "notes").symlink_to(table)  # a name that Triform does not use
    run = train(table, tmp_path / "runs" / "latest", resume=True)
    assert run.predict(["word1 1"])[0].output in ("good", "bad")
    ensemble = tmp_path / "ensemble"
    ensemble.mkdir()
    for seed in (0, 1):
        (ensemble / f"seed-{seed}").symlink_to(run.path)
    assert len(triform.load(ensemble, device="cpu").members) == 2
    with pytest.raises(CheckpointError, match="seed-0 is a link"):  # a run of each seed is trained in this folder
        triform.train_seeds("classify", 2, data=table, out=str(ensemble), resume=True, device="cpu", **SETTINGS)
