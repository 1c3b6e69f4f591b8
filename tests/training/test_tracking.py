"""Trackers write with the real packages to the disk, continue a resumed run, and never end a training."""

from __future__ import annotations

import importlib.util
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import triform
from triform.errors import ConfigError, RunInterruptedError
from triform.io.events import Event
from triform.training import trackers, tracking
from triform.training.callbacks import Callback
from triform.training.tracking import parse_trackers
from triform.training.trainer import Trainer

TINY: dict[str, Any] = {
    "data": [("a good film", "pos"), ("a bad film", "neg")] * 10,
    "model": {"d_model": 8, "n_layers": 1, "n_heads": 2},
    "train": {"max_steps": 6, "log_every": 1, "eval_every": 2, "checkpoint_every": 2},
    "device": "cpu",
}


class InterruptAt(Callback):
    """Interrupts a training after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_event(self, event: Event) -> None:
        if event["event"] == "train" and event["step"] == self.step:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _keep_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT", "TRACKIO_DIR", *trackers.QUIET_VARIABLES):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def require_tracker(name: str) -> None:
    """Skip a test if a package is missing. It is not imported: trackio reads TRACKIO_DIR when it is."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def train_in_two_parts(name: str, tmp_path: Path) -> Path:
    """Train with a tracker, interrupt it at step 4, and resume it."""
    out, options = tmp_path / "run", {"quiet": True, "track": [f"{name}={tmp_path / 'logs'}"]}
    stream = io.StringIO()
    with pytest.raises((RunInterruptedError, KeyboardInterrupt)):
        triform.train("classify", out=out, callbacks=[InterruptAt(4)], progress=stream, **options, **TINY)
    triform.train("classify", out=out, resume=True, progress=stream, **options, **TINY)
    assert "warning" not in stream.getvalue(), stream.getvalue()
    return out


def read_run(out: Path) -> tuple[dict[int, float], dict[int, float], float]:
    """Return the losses and the validation metrics by step, and the best metric, from metrics.jsonl."""
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]
    losses = {event["step"]: event["loss"] for event in events if event["event"] == "train"}
    metrics = {event["step"]: event["accuracy"] for event in events if event["event"] == "valid"}
    return losses, metrics, next(event["best"] for event in events if event["event"] == "end")


def test_tensorboard_writes_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = train_in_two_parts("tensorboard", tmp_path)
    losses, metrics, best = read_run(out)
    events = EventAccumulator(str(tmp_path / "logs" / "run"))
    events.Reload()
    logged = {item.step: item.value for item in events.Scalars("train/loss")}
    assert logged == pytest.approx(losses)
    assert {item.step: item.value for item in events.Scalars("valid/accuracy")} == pytest.approx(metrics)
    assert {"train/lr", "train/tokens_per_s", "valid/loss"} <= set(events.Tags()["scalars"])
    assert [item.value for item in events.Scalars("result/best")] == pytest.approx([best])
    assert b"model.d_model" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]


def test_mlflow_continues_one_run_in_its_database(tmp_path: Path) -> None:
    require_tracker("mlflow")
    losses, metrics, best = read_run(train_in_two_parts("mlflow", tmp_path))
    with sqlite3.connect(tmp_path / "logs" / "mlflow.db") as database:
        assert database.execute("select name, status from runs").fetchall() == [("run", "FINISHED")]
        rows = database.execute(
            "select step, value from metrics where key='train/loss' order by timestamp"
        ).fetchall()
        assert dict(rows) == pytest.approx(losses)
        valid = database.execute("select step, value from metrics where key='valid/accuracy'").fetchall()
        assert dict(valid) == pytest.approx(metrics)
        assert database.execute("select value from params where key='model.d_model'").fetchone() == ("8",)
        assert database.execute("select value from tags where key='triform.best'").fetchone() == (str(best),)


def test_trackio_continues_one_run_in_its_database(tmp_path: Path) -> None:
    require_tracker("trackio")
    losses, _, _ = read_run(train_in_two_parts("trackio", tmp_path))
    with sqlite3.connect(next((tmp_path / "logs").glob("*.db"))) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
        names, configs = {row[0] for row in rows}, database.execute("select config from configs").fetchall()
    assert len(names) == 1
    logged = {step: json.loads(values)["train/loss"] for _, step, values in rows if b"train/loss" in values}
    assert logged == pytest.approx(losses)
    assert json.loads(configs[0][0])["model.d_model"] == 8


def read_log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: 7 bytes, then the log format of LevelDB with blocks of 32 KiB."""
    position, parts = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_wandb_writes_offline_files_with_one_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    losses, _, best = read_run(train_in_two_parts("wandb", tmp_path))
    files = sorted((tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # the same id
    logged: dict[int, float] = {}
    summary: dict[str, Any] = {}
    for path in files:
        for data in read_log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if "train/loss" in items:
                logged[int(json.loads(items["step"]))] = json.loads(items["train/loss"])
            summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
    assert logged == pytest.approx(losses)
    assert summary["best"] == best


def test_a_tracker_that_fails_is_switched_off_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(tracking.Tracker):
        calls = 0

        def open(self, step: int) -> str:
            return "id"

        def log(self, values: dict[str, float], step: int) -> None:
            type(self).calls += 1
            raise OSError("no space left\nsecond line")

        def finish(self, status: str, summary: dict[str, Any]) -> None:
            raise AssertionError

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Broken)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    stream = io.StringIO()
    run = triform.train("classify", out=tmp_path / "run", track="tensorboard", quiet=True, progress=stream, **TINY)
    assert run.progress()["step"] == 6
    message = "warning: tensorboard has failed and is switched off; training continues (no space left)\n"
    assert (stream.getvalue(), Broken.calls) == (message, 1)


def test_a_training_that_fails_ends_its_tracked_run_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[str] = []

    class Recording(tracking.Tracker):
        def open(self, step: int) -> str:
            return "id"

        def log(self, values: dict[str, float], step: int) -> None:
            pass

        def finish(self, status: str, summary: dict[str, Any]) -> None:
            statuses.append(status)

    def fail(trainer: Trainer) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Recording)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(Trainer, "step", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        triform.train("classify", out=tmp_path / "run", track=["wandb"], quiet=True, **TINY)
    assert statuses == ["failed"]


def test_resuming_a_run_that_has_ended_does_not_open_its_tracked_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Recording(tracking.Tracker):
        def open(self, step: int) -> str:
            calls.append(f"open {step}")
            return "id"

        def log(self, values: dict[str, float], step: int) -> None:
            pass

        def finish(self, status: str, summary: dict[str, Any]) -> None:
            calls.append(status)

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Recording)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    options: dict[str, Any] = {**TINY, "out": tmp_path / "run", "track": "wandb", "quiet": True}
    run = triform.train("classify", **options)
    (run.path / "report.html").unlink()  # as if the process had been killed before the report was written
    triform.train("classify", resume=True, **options)
    assert (run.path / "report.html").exists()
    assert calls == ["open 0", "finished"]
    triform.train("classify", resume=True, **options | {"train": TINY["train"] | {"max_steps": 8}})
    assert calls == ["open 0", "finished", "open 6", "finished"]


def test_a_bad_request_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'neptune'; choose from tensorboard, mlflow, wandb"):
        parse_trackers(["neptune=x"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"wandb needs the package wandb; install it with .*\[track\]"):
        triform.train("classify", track=["wandb"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="the tracker mlflow is given twice"):
        parse_trackers(["mlflow", "mlflow=logs"])
