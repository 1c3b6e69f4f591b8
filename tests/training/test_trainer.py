"""When things happen: stopping, going on, keeping only what is sound, and saying so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from triform.errors import DivergedError, InterruptedRun
from triform.launch import train
from triform.training.folder import RunFolder, copied_together
from triform.training.listeners import ProgressLine, clock
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.1}
PACE = {"max_steps": 14, "eval_every": 4, "checkpoint_every": 100, "log_every": 3, "batch_size": 8}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def run(rows: str, out: Path, pace: dict[str, Any], **more: Any) -> Path:
    return train("classify", data=rows, out=out, device="cpu", quiet=True, model=MODEL, train=pace, **more).path


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: ask for a stop while the step numbered so is running."""
    step = Trainer.step

    def stopping(self: Trainer) -> None:
        step(self)
        if self.progress.step == steps:
            self.stop()

    monkeypatch.setattr(Trainer, "step", stopping)


@pytest.mark.parametrize(
    "pace",
    [
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1},
        {"schedule": "plateau", "plateau_patience": 0, "lr": 0.01},
        {"precision": "bf16"},
        {"accumulate": 2, "label_smoothing": 0.1},
        {"schedule": "noam", "optimizer": "adam", "patience": 2},
    ],
    ids=lambda pace: "-".join(pace),
)
@pytest.mark.parametrize("steps", [1, 6, 8])
def test_stopped_and_resumed_a_run_ends_as_if_it_had_never_stopped(
    pace: dict[str, Any], steps: int, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run(rows, tmp_path / "straight", PACE | pace)
    with monkeypatch.context() as patch:
        stop_after(steps, patch)
        with pytest.raises(InterruptedRun, match=f"stopped at step {steps}"):
            run(rows, tmp_path / "broken", PACE | pace)
    broken = run(rows, tmp_path / "broken", PACE | pace, resume=True)
    last = [RunFolder(path).latest_checkpoint() for path in (straight, broken)]
    for one, other in (last, (straight, broken)):
        name = next(path.name for path in one.glob("*.safetensors"))
        left, right = load_file(one / name), load_file(other / name)
        assert left.keys() == right.keys()
        assert all(tensor.equal(right[key]) for key, tensor in left.items())


def test_broken_weights_are_never_saved(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss may look sound for one more step than the weights do."""
    step = Trainer.step

    def spoiling(self: Trainer) -> None:
        step(self)
        if self.progress.step == 6:
            with torch.no_grad():
                next(self.task.model.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Trainer, "step", spoiling)
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match="step-000000005"):
        run(rows, out, PACE | {"checkpoint_every": 1, "eval_every": 3})
    latest = RunFolder(out).latest_checkpoint()
    assert latest is not None
    kept = {**load_file(latest / "tensors.safetensors"), **load_file(out / "model.safetensors")}
    assert kept
    assert all(tensor.isfinite().all() for tensor in kept.values() if tensor.is_floating_point())


def test_training_stops_early_when_nothing_gets_better(rows: str, tmp_path: Path) -> None:
    out = run(rows, tmp_path / "run", PACE | {"lr": 1e-9, "patience": 2, "eval_every": 1, "max_steps": 50})
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


def test_on_a_terminal_one_line_rewrites_itself() -> None:
    out = Terminal()
    line = ProgressLine(40, "accuracy", out)
    for event in EVENTS:
        line.hear(event)
    shown = out.getvalue()
    assert "\rstep 20/40  loss 1.5000  accuracy 50.00 %  1,234 tokens/s  4 s left" in shown
    assert shown.endswith("\n")


def test_elsewhere_lines_are_plain() -> None:
    out = io.StringIO()
    line = ProgressLine(40, "accuracy", out)
    for event in EVENTS:
        line.hear(event)
    assert out.getvalue().splitlines() == [
        "step 10/40  valid loss 2.2500  accuracy 50.00 %",
        "done after 20 steps, 3 s; best accuracy 50.00 % at step 10; 1,234 tokens/s",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(9.6, "10 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_a_clock_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_tensors_are_copied_together_and_come_out_as_they_were() -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.tensor(7), "c": torch.randn(5).bfloat16(), "d": torch.randn(2, 0)}
    found = copied_together(tensors)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].equal(tensor)
    assert len({tensor.untyped_storage().data_ptr() for name, tensor in found.items() if name != "d"}) == 3
