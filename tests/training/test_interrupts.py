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
from same_runs import assert_same_run

from triform.errors import InterruptedRun
from triform.interrupts import AT_ONCE, SAVING, handle_signals
from triform.launch import train
from triform.seeds import train_seeds
from triform.tasks import TASKS
from triform.training.folder import RunFolder
from triform.training.population import Population
from triform.training.stack import Stack
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
PACE = {"max_steps": 10, "eval_every": 4, "checkpoint_every": 4, "log_every": 3, "batch_size": 8}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    rows = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(60)]
    pairs = [f"one {n} two {n % 7}\tun {n} deux {n % 7}\n" for n in range(60)]
    found = {}
    for task, lines in (("classify", rows), ("translate", pairs), ("generate", rows)):
        path = tmp_path / f"{task}{'.txt' if task == 'generate' else '.tsv'}"
        path.write_text("".join(lines), encoding="utf-8")
        found[task] = str(path)
    return found


def stop_in_evaluation(patch: pytest.MonkeyPatch, task: str, number: int) -> None:
    """As Ctrl-C does: ask for a stop in the midst of the validation numbered so, which has drawn random numbers."""
    trainers: list[Trainer] = []
    begin, evaluate, left = Trainer.begin, TASKS[task].evaluate, [number]

    def remembering(self: Trainer) -> None:
        trainers.append(self)
        begin(self)

    def stopping(self: Any, *arguments: Any, **more: Any) -> Any:
        torch.rand(3)
        left[0] -= 1
        if not left[0]:
            trainers[-1].stop()
        return evaluate(self, *arguments, **more)

    patch.setattr(Trainer, "begin", remembering)
    patch.setattr(TASKS[task], "evaluate", stopping)


@pytest.mark.parametrize("number", [1, 3], ids=["the first", "the last"])
@pytest.mark.parametrize(
    ("task", "pace"),
    [
        ("classify", {"schedule": "plateau", "plateau_patience": 0, "lr": 0.01, "average": 0.9}),
        ("generate", {"patience": 2, "lr": 1e-9}),
        ("translate", {}),
    ],
    ids=["classify", "generate", "translate"],
)
def test_interrupted_in_a_validation_and_resumed_a_run_has_the_same_bits(
    task: str,
    pace: dict[str, Any],
    number: int,
    data: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(name: str, **more: Any) -> Path:
        asked = {"model": MODEL, "train": PACE | pace} | more
        return train(task, data=data[task], out=tmp_path / name, device="cpu", quiet=True, **asked).path

    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, task, 99)  # the unbroken one draws random numbers in its validations too
        straight = run("straight")
    for attempt in range(2):  # the second one is interrupted in the same validation, repeated
        with monkeypatch.context() as patch:
            stop_in_evaluation(patch, task, number if attempt == 0 else 1)
            with pytest.raises(InterruptedRun, match="everything is saved"):
                run("broken", resume=attempt == 1)
        (checkpoint,) = (tmp_path / "broken" / "checkpoints").iterdir()
        assert checkpoint.name.endswith("-unvalidated")
        assert not RunFolder(tmp_path / "broken").finished()
    with monkeypatch.context() as patch:
        stop_in_evaluation(patch, task, 99)
        assert_same_run(straight, run("broken", resume=True))


def test_seeds_interrupted_in_a_validation_and_resumed_have_the_same_bits(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, **more: Any) -> tuple[Path, ...]:
        asked = {"model": MODEL, "train": PACE | {"patience": 2}} | more
        made = train_seeds(
            "classify", 3, data=data["classify"], out=tmp_path / name, device="cpu", quiet=True, **asked
        )
        return made.folders

    straight, judge, populations = run("straight"), Stack.judge, []
    fit, left = Population.fit, [2]

    def remembering(self: Population) -> None:
        populations.append(self)
        fit(self)

    def stopping(self: Stack, *arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            populations[-1].stop()
        return judge(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Population, "fit", remembering)
        patch.setattr(Stack, "judge", stopping)
        with pytest.raises(InterruptedRun, match="step 8, everything is saved"):
            run("broken")
    assert populations
    checkpoints = [path.name for path in (tmp_path / "broken").glob("seed-*/checkpoints/*")]
    assert checkpoints == ["step-000000008-unvalidated"] * 3
    for one, other in zip(straight, run("broken", resume=True), strict=True):
        assert_same_run(one, other)


def test_the_validated_checkpoint_of_a_step_is_the_newer_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("step-000000004", "step-000000008-unvalidated", "step-000000008"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "state.json").write_text("{}", encoding="utf-8")
        latest = folder.latest_checkpoint()
        assert latest is not None
        assert latest.name == name


# -- signals


class Trained:
    """Something that trains until it is asked to stop."""

    stopping = False

    def stop(self) -> None:
        self.stopping = True


in_main_thread = pytest.mark.skipif(
    sys.platform == "win32" or threading.current_thread() is not threading.main_thread(),
    reason="signals are handled in the main thread, and by another call on Windows",
)


def wait_for(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not said() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert said()


@in_main_thread
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_saves_and_the_second_stops_at_once(name: str) -> None:
    out, trainer, number = io.StringIO(), Trained(), getattr(signal, name)
    before = signal.getsignal(number)
    with handle_signals(trainer, out):
        signal.raise_signal(number)
        assert trainer.stopping
        wait_for(lambda: out.getvalue() == f"{SAVING}\n")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        wait_for(lambda: out.getvalue() == f"{SAVING}\n{AT_ONCE}\n")
    assert signal.getsignal(number) is before


@in_main_thread
def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    trainer, before = Trained(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals(trainer, io.StringIO()):
            signal.raise_signal(signal.SIGHUP)
        assert not trainer.stopping
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_a_command_that_waits_for_another_library_ends_nonetheless() -> None:
    """The main thread is in a call that does not come back: no handler of Python's is reached."""
    code = """
import hashlib, threading
from triform.interrupts import handle_signals, signals_as_ctrl_c
with signals_as_ctrl_c(), handle_signals(exit_message=lambda: "nothing was saved"):
    threading.Timer(0.5, print, ["ready"], {"flush": True}).start()  # by then the main thread is in the call
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, f"{AT_ONCE}\ntriform: nothing was saved\n")


def stop_hard(patch: pytest.MonkeyPatch, place: str) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(place, interrupted)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            "triform.launch.announce",
            "stopped before the first checkpoint; begin again with: triform train classify",
        ),
        (
            "triform.training.trainer.Trainer._validate",
            "stopped without saving; go on from the checkpoint of step 2",
        ),
        ("triform.launch.write_report", "stopped after training, before the report was written; finish with: "),
    ],
)
def test_a_hard_stop_says_what_there_is_to_go_on_with(
    place: str, words: str, data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**more: Any) -> Path:
        pace = PACE | {"checkpoint_every": 2}
        asked = {"model": MODEL, "train": pace, "out": tmp_path / "run", "device": "cpu", "quiet": True} | more
        return train("classify", data=data["classify"], **asked).path

    with monkeypatch.context() as patch:
        stop_hard(patch, place)
        with pytest.raises(InterruptedRun, match=rf"{words}.* --resume --device cpu"):
            run()
    assert (run(resume=True) / "report.html").exists()
