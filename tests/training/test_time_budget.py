"""Training that fits into a time budget, by a clock that only the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from same_runs import MODEL, train_run

from triform.launch import RunOptions, estimate
from triform.progress import report_progress
from triform.tasks.evaluation import Evaluator
from triform.training import time_budget
from triform.training.run_folder import RunFolder
from triform.training.time_budget import StepTimes, estimate_seconds, fit_steps
from triform.training.trainer import Trainer

TRAIN_SETTINGS = {"max_steps": 400, "batch_size": 8, "schedule": "cosine"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second, and a validation five."""
    seconds, original_step, original_evaluate = [0.0], Trainer.step, Evaluator.evaluate

    def slow_step(self: Trainer) -> None:
        seconds[0] += 1
        original_step(self)

    def slow_evaluation(self: Evaluator, *arguments: Any, **kwargs: Any) -> Any:
        seconds[0] += 5
        return original_evaluate(self, *arguments, **kwargs)

    monkeypatch.setattr(time_budget, "now", lambda: seconds[0])
    monkeypatch.setattr(Trainer, "step", slow_step)
    monkeypatch.setattr(Evaluator, "evaluate", slow_evaluation)


@pytest.mark.usefixtures("clock")
def test_as_many_steps_as_fit_are_chosen_and_the_measurement_leaves_no_trace(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = RunFolder(train_run(rows, tmp_path / "fitted", TRAIN_SETTINGS | {"max_minutes": 2}, quiet=False))
    resolved = fitted.read_config().train
    assert 20 < resolved.max_steps < 120
    output = capsys.readouterr().err
    assert (
        f"{resolved.max_steps} of 400 steps fit into train.max_minutes=2, validated every {resolved.eval_every}"
        in output
    )
    settings = TRAIN_SETTINGS | {"max_steps": resolved.max_steps, "eval_every": resolved.eval_every}
    plain = RunFolder(train_run(rows, tmp_path / "plain", settings))
    left, right = (load_file(folder.model_file) for folder in (fitted, plain))
    assert left.keys() == right.keys()
    assert all(tensor.equal(right[name]) for name, tensor in left.items())
    # The same command.
    resumed = RunFolder(train_run(rows, tmp_path / "fitted", TRAIN_SETTINGS | {"max_minutes": 2}, resume=True))
    assert resumed.read_config() == fitted.read_config()


@pytest.mark.usefixtures("clock")
def test_a_budget_that_is_large_enough_changes_nothing(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(
        train_run(rows, tmp_path / "run", TRAIN_SETTINGS | {"max_steps": 30, "max_minutes": 60}, quiet=False)
    )
    assert folder.read_config().train.max_steps == 30
    assert "about 1 min 20 s for 30 steps, within train.max_minutes=60" in capsys.readouterr().err


@pytest.mark.usefixtures("clock")
def test_a_budget_without_room_for_a_step_is_said(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(train_run(rows, tmp_path / "run", TRAIN_SETTINGS | {"max_minutes": 0.05}, quiet=False))
    assert folder.read_config().train.max_steps == 1
    assert (
        "warning: train.max_minutes=0.05 is too short for one step and its validation, which take about 6.0 s; "
        "training takes one step anyway\n"
    ) in capsys.readouterr().err


def test_steps_that_compile_or_capture_count_once_and_not_as_the_others(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third to the fifth step take a tenth of a second instead of a hundredth."""
    seconds, original_step = [0.0], Trainer.step

    def slow_step(self: Trainer) -> None:
        original_step(self)
        seconds[0] += 0.1 if 3 <= self.progress.step <= 5 else 0.01

    monkeypatch.setattr(time_budget, "now", lambda: seconds[0])
    monkeypatch.setattr(Trainer, "step", slow_step)
    monkeypatch.setattr(Trainer, "n_setups", property(lambda self: min(5, max(2, self.progress.step))))
    options = RunOptions(device="cpu")
    expected = estimate("classify", data=rows, options=options, model=MODEL, train=TRAIN_SETTINGS)
    assert expected.seconds == pytest.approx(400 * 0.01 + 3 * 0.09)


@pytest.mark.parametrize("valid_seconds", [0.0, 0.5, 30.0, 1_000.0])
@pytest.mark.parametrize("eval_every", [0, 50])
def test_steps_and_validations_fit_into_the_time(valid_seconds: float, eval_every: int) -> None:
    steps, steps_between = fit_steps(600, 100_000, 0.1, valid_seconds, eval_every)
    assert 1 <= steps < 100_000
    assert steps_between >= 1
    if valid_seconds < 600:
        assert estimate_seconds(steps, steps_between, 0.1, valid_seconds) <= 600 + valid_seconds
    if not eval_every and valid_seconds == 30:
        # No more than a third on validations.
        assert estimate_seconds(steps, steps_between, 0.0, valid_seconds) <= 200


def test_a_long_validation_is_timed_by_its_beginning(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, original_evaluate = [0.0], Evaluator.evaluate

    def long_evaluation(self: Evaluator, *arguments: Any, **kwargs: Any) -> Any:
        for done in range(1, 101):
            seconds[0] += 10
            report_progress("validating", done, 100)
        return original_evaluate(self, *arguments, **kwargs)

    measured: list[StepTimes] = []
    original_measure = time_budget.measure_step_times

    def record_measurement(*arguments: Any) -> StepTimes:
        measured.append(original_measure(*arguments))
        return measured[0]

    monkeypatch.setattr(time_budget, "now", lambda: seconds[0])
    with monkeypatch.context() as patch:
        patch.setattr(time_budget, "measure_step_times", record_measurement)
        patch.setattr(Evaluator, "evaluate", long_evaluation)
        patch.setattr(Trainer, "evaluate", lambda *_: {"loss": 1.0, "accuracy": 0.5, "f1": 0.5, "rows": 9})
        train_run(rows, tmp_path / "run", TRAIN_SETTINGS | {"max_steps": 4, "max_minutes": 1})
    assert measured[0].validation == pytest.approx(1_000)
    assert seconds[0] < 100  # not all of it was waited for
