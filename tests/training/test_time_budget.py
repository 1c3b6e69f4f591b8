"""Training that fits into a time budget, by a clock that only the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from triform.config import TrainConfig
from triform.launch import train
from triform.progress import report
from triform.tasks.classify import Classify
from triform.training import budget
from triform.training.budget import seconds_of, steps_within
from triform.training.folder import RunFolder
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
PACE = {"max_steps": 400, "batch_size": 8, "schedule": "cosine"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second, and a validation five."""
    seconds, step, evaluate = [0.0], Trainer.step, Classify.evaluate

    def slow_step(self: Trainer) -> None:
        seconds[0] += 1
        step(self)

    def slow_evaluation(self: Classify, *arguments: Any, **more: Any) -> Any:
        seconds[0] += 5
        return evaluate(self, *arguments, **more)

    monkeypatch.setattr(budget, "now", lambda: seconds[0])
    monkeypatch.setattr(Trainer, "step", slow_step)
    monkeypatch.setattr(Classify, "evaluate", slow_evaluation)


def run(rows: str, out: Path, pace: dict[str, Any], **more: Any) -> RunFolder:
    asked = {"data": rows, "out": out, "device": "cpu", "quiet": True, "model": MODEL, "train": pace} | more
    return RunFolder(train("classify", **asked).path)


@pytest.mark.usefixtures("clock")
def test_as_many_steps_as_fit_are_chosen_and_the_measurement_leaves_no_trace(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = run(rows, tmp_path / "fitted", PACE | {"max_minutes": 2}, quiet=False)
    chosen = fitted.read_config().train
    assert 20 < chosen.max_steps < 120
    told = capsys.readouterr().err
    assert (
        f"{chosen.max_steps} of 400 steps fit into train.max_minutes=2, validated every {chosen.eval_every}" in told
    )
    asked = PACE | {"max_steps": chosen.max_steps, "eval_every": chosen.eval_every}
    plain = run(rows, tmp_path / "plain", asked)
    left, right = (load_file(folder.model_file) for folder in (fitted, plain))
    assert left.keys() == right.keys()
    assert all(tensor.equal(right[name]) for name, tensor in left.items())
    again = run(rows, tmp_path / "fitted", PACE | {"max_minutes": 2}, resume=True)  # the same command
    assert again.read_config() == fitted.read_config()


@pytest.mark.usefixtures("clock")
def test_a_budget_that_is_large_enough_changes_nothing(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(rows, tmp_path / "run", PACE | {"max_steps": 30, "max_minutes": 60}, quiet=False)
    assert folder.read_config().train.max_steps == 30
    assert "about 1 min 20 s for 30 steps, within train.max_minutes=60" in capsys.readouterr().err


@pytest.mark.usefixtures("clock")
def test_a_budget_without_room_for_a_step_is_said(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(rows, tmp_path / "run", PACE | {"max_minutes": 0.05}, quiet=False)
    assert folder.read_config().train.max_steps == 1
    assert (
        "warning: train.max_minutes=0.05 is too short for one step and its validation, which take about 6 s; "
        "training for one step all the same\n"
    ) in capsys.readouterr().err


@pytest.mark.parametrize("valid_seconds", [0.0, 0.5, 30.0, 1_000.0])
@pytest.mark.parametrize("eval_every", [0, 50])
def test_steps_and_validations_fit_into_the_time(valid_seconds: float, eval_every: int) -> None:
    steps, every = steps_within(600, 100_000, 0.1, valid_seconds, TrainConfig(eval_every=eval_every))
    assert 1 <= steps < 100_000
    assert every >= 1
    if valid_seconds < 600:
        assert seconds_of(steps, every, 0.1, valid_seconds) <= 600 + valid_seconds
    if not eval_every and valid_seconds == 30:
        assert seconds_of(steps, every, 0.0, valid_seconds) <= 200  # no more than a third on validations


def test_a_long_validation_is_timed_by_its_beginning(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, evaluate = [0.0], Classify.evaluate

    def long_evaluation(self: Classify, *arguments: Any, **more: Any) -> Any:
        for done in range(1, 101):
            seconds[0] += 10
            report("validating", done, 100)
        return evaluate(self, *arguments, **more)

    found: list[float] = []
    time_steps = budget.time_steps

    def remembering(*arguments: Any) -> tuple[float, float]:
        found.extend(time_steps(*arguments))
        return found[0], found[1]

    monkeypatch.setattr(budget, "now", lambda: seconds[0])
    with monkeypatch.context() as patch:
        patch.setattr(budget, "time_steps", remembering)
        patch.setattr(Classify, "evaluate", long_evaluation)
        patch.setattr(Trainer, "judge", lambda *_: {"loss": 1.0, "accuracy": 0.5, "f1": 0.5, "rows": 9})
        run(rows, tmp_path / "run", PACE | {"max_steps": 4, "max_minutes": 1})
    assert found[1] == pytest.approx(1_000)
    assert seconds[0] < 100  # not all of it was waited for
