"""When things happen: stopping, going on, keeping only what is sound, and saying so."""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from same_runs import StoppedAfter

from triform.errors import ConfigError, DivergedError
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.tasks.translate import TranslationEvaluator
from triform.training.display import ProgressDisplay, TimeEstimator
from triform.training.run_folder import RunFolder
from triform.training.tensors import batched_to_cpu
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.1}
TRAIN_SETTINGS = {"max_steps": 14, "eval_every": 4, "checkpoint_every": 100, "log_every": 3, "batch_size": 8}


def train_run(rows: str, out: Path, train_settings: dict[str, Any], **kwargs: Any) -> Path:
    return train(
        "classify", data=rows, out=out, device="cpu", quiet=True, model=MODEL, train=train_settings, **kwargs
    ).path


@pytest.mark.parametrize(
    "train_settings",
    [
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1},
        {"schedule": "plateau", "plateau_patience": 0, "lr": 0.01},
        {"precision": "bf16"},
        {"grad_accumulation": 2, "label_smoothing": 0.1},
        {"schedule": "noam", "optimizer": "adam", "patience": 2},
    ],
    ids=lambda intervals: "-".join(intervals),
)
@pytest.mark.parametrize("steps", [1, 6, 8])
def test_stopped_and_resumed_a_run_ends_as_if_it_had_never_stopped(
    train_settings: dict[str, Any],
    steps: int,
    rows: str,
    tmp_path: Path,
    stopped_after: StoppedAfter,
) -> None:
    uninterrupted = train_run(rows, tmp_path / "straight", TRAIN_SETTINGS | train_settings)
    with stopped_after(steps):
        train_run(rows, tmp_path / "broken", TRAIN_SETTINGS | train_settings)
    resumed = train_run(rows, tmp_path / "broken", TRAIN_SETTINGS | train_settings, resume=True)
    checkpoints = [RunFolder(path).latest_checkpoint() for path in (uninterrupted, resumed)]
    for first_folder, second_folder in (checkpoints, (uninterrupted, resumed)):
        name = next(path.name for path in first_folder.glob("*.safetensors"))
        left, right = load_file(first_folder / name), load_file(second_folder / name)
        assert left.keys() == right.keys()
        assert all(tensor.equal(right[key]) for key, tensor in left.items())


def test_broken_weights_are_never_saved(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss may look sound for one more step than the weights do."""
    original_step = Trainer.step

    def step_then_corrupt(self: Trainer) -> None:
        original_step(self)
        if self.progress.step == 6:
            with torch.no_grad():
                next(self.task.model.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Trainer, "step", step_then_corrupt)
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match="step-000000005"):
        train_run(rows, out, TRAIN_SETTINGS | {"checkpoint_every": 1, "eval_every": 3})
    checkpoint = RunFolder(out).latest_checkpoint()
    assert checkpoint is not None
    saved = {**load_file(checkpoint / "tensors.safetensors"), **load_file(out / "model.safetensors")}
    assert saved
    assert all(tensor.isfinite().all() for tensor in saved.values() if tensor.is_floating_point())


def test_training_stops_early_when_nothing_gets_better(rows: str, tmp_path: Path) -> None:
    out = train_run(
        rows, tmp_path / "run", TRAIN_SETTINGS | {"lr": 1e-9, "patience": 2, "eval_every": 1, "max_steps": 50}
    )
    latest = RunFolder(out).latest_checkpoint()
    assert latest is not None
    state = RunFolder(out).read_state(latest)
    assert state["finished"] == "patience"
    assert state["progress"]["step"] - state["progress"]["best_step"] == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EVENTS = (
    {"event": "train", "step": 10, "loss": 2.5, "tokens_per_s": 1234.0, "seconds": 1.0},
    {"event": "valid", "step": 10, "loss": 2.25, "accuracy": 0.5, "seconds": 1.5},
    {"event": "train", "step": 20, "loss": 1.5, "tokens_per_s": 1234.0, "seconds": 3.0},
    {"event": "end", "step": 20, "reason": "max_steps", "seconds": 3.0, "best": 0.5, "best_step": 10},
)


def render_bar(terminal: Terminal, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was last on a terminal of this width, line by line."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    now = [100.0]
    monkeypatch.setattr("triform.training.display.time.monotonic", lambda: now[0])
    display = ProgressDisplay(40, "accuracy", terminal, eval_every=10)
    try:
        for step in range(1, 11):
            now[0] += 2
            display.last_refresh_at = 0.0
            display.on_progress("step", step, 40)
        for event in EVENTS[:2]:
            display.on_event(event)
        display.last_refresh_at = 0.0
        display.on_progress("step", 11, 40)
        display.last_refresh_at = 0.0
        assert display.bar is not None
        assert display.bar.live is not None
        assert display.bar.live.console.width == width
        console = Console(file=io.StringIO(), width=width)
        console.print(display.bar)
        return [text.rstrip() for text in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    finally:
        display.close()


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_on_a_terminal_a_bar_fits_the_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    (bar,) = render_bar(out, width, monkeypatch)
    assert bar.startswith("step 11/40 ")
    assert "━" in bar
    assert len(bar) <= width
    assert (" left" in bar) == (width >= 40)
    assert ("accuracy 50.00 %" in bar) == (width >= 80)
    assert ("1,234 tokens/s" in bar) == (width >= 200)
    assert "step 10/40  valid loss 2.2500  accuracy 50.00 %" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back


def test_a_validation_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    display = ProgressDisplay(40, "accuracy", out)
    display.on_progress("validating", 3, 12)
    assert display.bar is not None
    assert (display.bar.heading, display.bar.fraction) == ("validating 3/12", 0.25)
    display.on_event(EVENTS[1])
    assert (display.bar.heading, display.bar.fraction) == ("step 10/40", 0.25)
    display.close()


def test_the_time_left_counts_validations() -> None:
    estimator = TimeEstimator(40, 10)
    for step in range(1, 11):
        estimator.update("step", step, 100.0 + 2 * step)  # two seconds each
    assert estimator.format_left(120.0) == "over 1 min 00 s left"
    estimator.update("validating", 0, 120.0)
    estimator.update("validating", 4, 125.0)
    estimator.finish_validation(130.0)
    assert estimator.valid_seconds == 10
    estimator.update("step", 11, 132.0)
    assert estimator.step_seconds == pytest.approx(2)
    assert estimator.format_left(132.0) == "1 min 28 s left"  # 29 steps and 3 validations
    assert estimator.seconds_left(133.0) == pytest.approx(87)
    estimator.update("validating", 0, 134.0)
    assert estimator.seconds_left(138.0) == pytest.approx(88 + 6)


def expected_seconds_per_step(
    step_seconds: list[float], monkeypatch: pytest.MonkeyPatch, setups: Collection[int] = ()
) -> float:
    """Show steps that take so long, of which `setups` capture or compile, and read the time from the line."""
    out, now, n_setups = io.StringIO(), [0.0], [0]
    monkeypatch.setattr("triform.training.display.time.monotonic", lambda: now[0])
    n_steps = len(step_seconds)
    display = ProgressDisplay(n_steps, "accuracy", out, eval_every=100, count_setups=lambda: n_setups[0])
    for step, seconds in enumerate(step_seconds, 1):
        now[0] += seconds
        n_setups[0] += step in setups
        display.on_progress("step", step, n_steps)
    (line,) = out.getvalue().splitlines()
    found = re.fullmatch(r"about (\d+) min (\d+) s for (\d+) steps, without validations", line)
    assert found is not None
    minutes, seconds, steps = map(int, found.groups())
    return (60 * minutes + seconds) / steps


def test_the_expected_time_is_told_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expected_seconds_per_step([0.4] * 500, monkeypatch) == pytest.approx(0.4, rel=0.01)


def test_the_expected_time_is_that_of_steps_without_compilation_and_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = [0.02] * 10_000
    compiled_twice = [30.0, 15.0, *steady]
    assert expected_seconds_per_step(compiled_twice, monkeypatch) == pytest.approx(0.02, rel=0.01)
    setups = {int(number**1.3) for number in range(1, 81)}  # of 40 shapes, more and more seldom
    captured = [0.25 if step in setups else seconds for step, seconds in enumerate(steady, 1)]
    assert expected_seconds_per_step(captured, monkeypatch, setups) == pytest.approx(0.02, rel=0.01)


def test_the_expected_time_counts_work_that_the_host_has_only_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = [0.98 if step % 50 == 0 else 0.0004 for step in range(1, 10_001)]  # a log waits for the device
    assert expected_seconds_per_step(queued, monkeypatch) == pytest.approx(0.02, rel=0.25)


def test_elsewhere_lines_are_plain() -> None:
    out = io.StringIO()
    display = ProgressDisplay(40, "accuracy", out)
    for event in EVENTS:
        display.on_event(event)
    assert out.getvalue().splitlines() == [
        "step 10/40  valid loss 2.2500  accuracy 50.00 %",
        "done after 20 steps, 3.0 s; best accuracy 50.00 % at step 10; 1,234 tokens/s",
    ]


def test_tensors_are_copied_together_and_come_out_as_they_were() -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.tensor(7), "c": torch.randn(5).bfloat16(), "d": torch.randn(2, 0)}
    copies = batched_to_cpu(tensors)
    assert copies.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert copies[name].dtype == tensor.dtype
        assert copies[name].equal(tensor)
    assert len({tensor.untyped_storage().data_ptr() for name, tensor in copies.items() if name != "d"}) == 3


def test_a_validation_loss_that_is_not_finite_is_one_line_where_nothing_can_be_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"one {n} two\tun {n} deux\n" for n in range(40)), encoding="utf-8")
    monkeypatch.setattr(
        TranslationEvaluator, "metric_sums", lambda self, batch: torch.tensor([float("nan"), 0.0, 1.0])
    )
    progress = io.StringIO()
    with pytest.raises(DivergedError, match="the validation loss is not finite at step 4"):
        train(
            "translate",
            data=data,
            out=tmp_path / "run",
            device="cpu",
            progress=progress,
            model=MODEL,
            train=TRAIN_SETTINGS,
        )


def test_a_terminal_that_was_closed_does_not_end_training(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClosedTerminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setenv("TERM", "xterm")
    out = tmp_path / "run"
    result = train(
        "classify", data=rows, out=out, device="cpu", progress=ClosedTerminal(), model=MODEL, train=TRAIN_SETTINGS
    )
    assert result.progress()["finished"] == "max_steps"


def test_several_seeds_are_refused_before_memory_runs_out(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triform.training.memory.available_memory", lambda: 0)
    with pytest.raises(ConfigError, match="training needs"):
        train_seeds("classify", 2, data=rows, out=tmp_path / "run", device="cpu", quiet=True, model=MODEL)
    assert not (tmp_path / "run").exists()
