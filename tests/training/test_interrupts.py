"""A stop asked for at any moment acts at once and is acknowledged, and a resumed run has the same bits."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from same_runs import assert_same_bits, assert_same_run

from triform.errors import RunInterruptedError
from triform.experiments.seeds import train_seeds
from triform.interrupts import SAVING_MESSAGE, STOPPING_NOW_MESSAGE, handle_signals
from triform.launch import train
from triform.tasks.evaluation import Evaluator
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
TRAIN_SETTINGS = {"max_steps": 10, "eval_every": 4, "checkpoint_every": 4, "log_every": 3, "batch_size": 8}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    rows = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(60)]
    pairs = [f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(60)]
    path_by_task = {}
    for task, lines in (("classify", rows), ("translate", pairs), ("generate", rows)):
        path = tmp_path / f"{task}{'.txt' if task == 'generate' else '.tsv'}"
        path.write_text("".join(lines), encoding="utf-8")
        path_by_task[task] = str(path)
    return path_by_task


def stop_in_evaluation(patch: pytest.MonkeyPatch, number: int) -> None:
    """As Ctrl-C does: ask for a stop in the midst of the validation numbered so, which has drawn random numbers."""
    trainers: list[Trainer] = []
    original_start, original_evaluate, remaining = Trainer.start, Evaluator.evaluate, [number]

    def record_trainer(self: Trainer) -> None:
        trainers.append(self)
        original_start(self)

    def evaluate_then_stop(self: Any, *arguments: Any, **kwargs: Any) -> Any:
        torch.rand(3)
        remaining[0] -= 1
        if not remaining[0]:
            trainers[-1].stop()
        return original_evaluate(self, *arguments, **kwargs)

    patch.setattr(Trainer, "start", record_trainer)
    patch.setattr(Evaluator, "evaluate", evaluate_then_stop)


@pytest.mark.parametrize("number", [1, 3], ids=["the first", "the last"])
@pytest.mark.parametrize(
    ("task", "train_settings"),
    [
        ("classify", {"schedule": "plateau", "plateau_patience": 0, "lr": 0.01, "ema_decay": 0.9}),
        ("generate", {"patience": 2, "lr": 1e-9}),
        ("translate", {}),
    ],
    ids=["classify", "generate", "translate"],
)
def test_interrupted_in_a_validation_and_resumed_a_run_has_the_same_bits(
    task: str,
    train_settings: dict[str, Any],
    number: int,
    data: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train_run(name: str, **kwargs: Any) -> Path:
        settings = {"model": MODEL, "train": TRAIN_SETTINGS | train_settings} | kwargs
        return train(task, data=data[task], out=tmp_path / name, device="cpu", quiet=True, **settings).path

    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, 99)  # the unbroken one draws random numbers in its validations too
        uninterrupted = train_run("straight")
    for attempt in range(2):  # the second one is interrupted in the same validation, repeated
        with monkeypatch.context() as patch:
            stop_in_evaluation(patch, number if attempt == 0 else 1)
            with pytest.raises(RunInterruptedError, match="everything is saved"):
                train_run("broken", resume=attempt == 1)
        (checkpoint,) = (tmp_path / "broken" / "checkpoints").iterdir()
        assert checkpoint.name.endswith("-unvalidated")
        assert not RunFolder(tmp_path / "broken").is_finished()
    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, 99)
        assert_same_run(uninterrupted, train_run("broken", resume=True))


def test_seeds_interrupted_in_a_validation_and_resumed_have_the_same_bits(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_run(name: str, **kwargs: Any) -> tuple[Path, ...]:
        settings = {"model": MODEL, "train": TRAIN_SETTINGS | {"patience": 2}} | kwargs
        result = train_seeds(
            "classify", 3, data=data["classify"], out=tmp_path / name, device="cpu", quiet=True, **settings
        )
        return result.folders

    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, 99)
        uninterrupted = train_run("straight")
    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, 5)  # of the second seed
        with pytest.raises(RunInterruptedError, match="everything is saved"):
            train_run("broken")
    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, 99)
        resumed = train_run("broken", resume=True)
    for first, second in zip(uninterrupted, resumed, strict=True):
        assert_same_bits(first, second)


def test_the_validated_checkpoint_of_a_step_is_the_newer_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("step-000000004", "step-000000008-unvalidated", "step-000000008"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "state.json").write_text("{}", encoding="utf-8")
        latest = folder.latest_checkpoint()
        assert latest is not None
        assert latest.name == name


# -- signals


class FakeTrainer:
    """Something that trains until it is asked to stop."""

    stop_requested = False

    def stop(self) -> None:
        self.stop_requested = True


in_main_thread = pytest.mark.skipif(
    sys.platform == "win32" or threading.current_thread() is not threading.main_thread(),
    reason="signals are handled in the main thread, and by another call on Windows",
)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


@in_main_thread
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_saves_and_the_second_stops_at_once(name: str) -> None:
    out, trainer, signum = io.StringIO(), FakeTrainer(), getattr(signal, name)
    before = signal.signal(signum, signal.default_int_handler)  # under `nohup`, SIGHUP would be ignored
    try:
        with handle_signals(trainer, out):
            signal.raise_signal(signum)
            assert trainer.stop_requested
            wait_for(lambda: out.getvalue() == f"{SAVING_MESSAGE}\n")
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signum)
            wait_for(lambda: out.getvalue() == f"{SAVING_MESSAGE}\n{STOPPING_NOW_MESSAGE}\n")
        assert signal.getsignal(signum) is signal.default_int_handler
    finally:
        signal.signal(signum, before)


@in_main_thread
def test_an_interrupt_that_is_turned_into_another_exception_is_still_one() -> None:
    """Python 3.11 makes a RuntimeError of whatever is raised while a class gets its attributes, as in an import."""

    class Attribute:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), handle_signals(stream=io.StringIO()):
        type("Library", (), {"attribute": Attribute()})
    with pytest.raises(RuntimeError, match="of the library"), handle_signals(stream=io.StringIO()):
        raise RuntimeError("an error of the library")


@in_main_thread
def test_the_message_of_an_interrupted_command_is_kept() -> None:
    def interrupted_command() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RunInterruptedError("interrupted: 2 of 5 parts are there") from None

    with pytest.raises(RunInterruptedError, match="2 of 5 parts"), handle_signals(stream=io.StringIO()):
        interrupted_command()


@in_main_thread
def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    trainer, before = FakeTrainer(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals(trainer, io.StringIO()):
            signal.raise_signal(signal.SIGHUP)
        assert not trainer.stop_requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_a_command_that_waits_for_another_library_ends_nonetheless() -> None:
    """The main thread is in a call that does not come back: no handler of Python's is reached."""
    code = """
import hashlib, sys, threading, time
from triform.interrupts import handle_signals, signals_as_ctrl_c
def report_when_the_main_thread_is_in_the_call():
    while sys._current_frames()[threading.main_thread().ident].f_lineno != LINE_OF_THE_CALL:
        time.sleep(0.01)
    time.sleep(0.3)
    print("ready", flush=True)
with signals_as_ctrl_c(), handle_signals(exit_message=lambda: "nothing was saved"):
    threading.Thread(target=report_when_the_main_thread_is_in_the_call, daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""
    line = code.splitlines().index('    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)') + 1
    code, pipe = code.replace("LINE_OF_THE_CALL", str(line)), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, f"{STOPPING_NOW_MESSAGE}\ntriform: nothing was saved\n")


def raise_interrupt_in(patch: pytest.MonkeyPatch, target: str) -> None:
    def raise_interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(target, raise_interrupt)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "triform.launch.log_start",
            "stopped before the first checkpoint; start again with: triform train classify",
        ),
        (
            "triform.training.trainer.Trainer._validate",
            "stopped without saving; continue from the checkpoint of step 2",
        ),
        ("triform.run_log.write_report", "stopped after training, before the report was written; finish with: "),
    ],
)
def test_a_hard_stop_says_what_there_is_to_go_on_with(
    target: str, message: str, data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_run(**kwargs: Any) -> Path:
        train_settings = TRAIN_SETTINGS | {"checkpoint_every": 2}
        settings = {
            "model": MODEL,
            "train": train_settings,
            "out": tmp_path / "run",
            "device": "cpu",
            "quiet": True,
        } | kwargs
        return train("classify", data=data["classify"], **settings).path

    with monkeypatch.context() as patch:
        raise_interrupt_in(patch, target)
        with pytest.raises(RunInterruptedError, match=rf"{message}.* --resume --device cpu"):
            train_run()
    assert (train_run(resume=True) / "report.html").exists()
