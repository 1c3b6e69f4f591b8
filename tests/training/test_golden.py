"""The first losses of each form, pinned: a change that means no harm leaves them where they are.

Dropout is off, so that only the initial weights are random, and those torch draws alike in every version.
After a change that means to move them, `python tests/training/test_golden.py` prints the new ones.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from triform.config import Config, TaskName
from triform.config.settings import build_config
from triform.data.samplers import Indices
from triform.errors import DivergedError
from triform.io.events import Event
from triform.tasks import TASKS, PreparedTask
from triform.training.callbacks import Callback
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer

TASK_NAMES: tuple[TaskName, ...] = ("classify", "generate", "translate")
WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]
STEPS = 20
TINY = {
    "seed": 5,
    "tokenizer.kind": "word",
    "data.max_len": 12,
    "model.d_model": 16,
    "model.d_ff": 64,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.dropout": 0.0,
    "train.lr": 3e-3,
    "train.warmup_steps": 4,
    "train.max_steps": STEPS,
    "train.eval_every": STEPS,
    "train.checkpoint_every": STEPS,
    "train.log_every": 1,
}
TASK_SETTINGS: dict[TaskName, dict[str, Any]] = {
    "classify": {"train.batch_tokens": 64, "model.norm_position": "post"},
    "generate": {"train.batch_size": 4, "train.schedule": "noam"},
    "translate": {"train.batch_tokens": 64, "train.label_smoothing": 0.1},
}
GOLDEN: dict[TaskName, list[float]] = {
    "classify": [
        0.6261233627715,
        0.7145787622851,
        1.204141251001,
        0.3440820218626,
        0.5164574741157,
        0.6040862155722,
        0.5800610386306,
        0.8829594284639,
        0.2870854990703,
        0.5912520970979,
        0.4625400855864,
        0.475454874829,
        0.4420197525482,
        0.3829086014128,
        0.2864072212052,
        0.280335949115,
        0.08637144440183,
        0.2096688748249,
        0.1486988138681,
        0.2777016834271,
    ],
    "generate": [
        3.871002216505,
        3.165077529842,
        3.26037774383,
        3.438870667156,
        2.951268071943,
        2.938860317794,
        2.730743699353,
        2.869397217035,
        2.700667643375,
        2.486219766466,
        2.754936775115,
        2.472623891304,
        2.626449463445,
        2.519102342528,
        2.427007047663,
        2.652306785477,
        2.479965631215,
        2.481215146532,
        2.405965730086,
        2.456773183147,
    ],
    "translate": [
        3.011091831841,
        3.145956223344,
        2.851310951208,
        3.008396752958,
        2.583347548583,
        2.72878303932,
        2.719972469008,
        2.554833085363,
        2.541485571873,
        2.423609765596,
        2.553043102584,
        2.242855004486,
        2.56020811445,
        2.491666786969,
        2.407159361024,
        2.437145255468,
        2.423303268731,
        2.18625050777,
        2.374052021061,
        2.272703986803,
    ],
}


class EventRecorder(Callback):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def write_data(task: TaskName, folder: Path) -> Path:
    """Sentences drawn by Python's own generator, whose stream never changes."""
    rng = random.Random(11)
    texts = [[rng.choice(WORDS) for _ in range(rng.randint(2, 9))] for _ in range(90)]
    if task == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(" ".join(words) for words in texts), encoding="utf-8")
        return path
    path, header = folder / f"{task}.tsv", "text\tlabel" if task == "classify" else "source\ttarget"
    second_column = [
        ("no", "yes")["amber" in words] if task == "classify" else " ".join(words[::-1]) for words in texts
    ]
    lines = [f"{' '.join(words)}\t{second_text}" for words, second_text in zip(texts, second_column, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def prepare_task(task: TaskName, folder: Path, **overrides: Any) -> PreparedTask:
    settings = {
        "task": task,
        "data.train": str(write_data(task, folder)),
        **TINY,
        **TASK_SETTINGS[task],
        **overrides,
    }
    torch.set_default_dtype(torch.float64)  # weights drawn in float32 differ a little from CPU to CPU
    try:
        return TASKS[task].prepare(build_config(settings, Config()), folder / "run")
    finally:
        torch.set_default_dtype(torch.float32)


def build_trainer(prepared_task: PreparedTask, folder: Path) -> tuple[Trainer, EventRecorder]:
    run_folder, recorder = RunFolder(folder / "run"), EventRecorder()
    run_folder.path.mkdir(parents=True, exist_ok=True)
    return Trainer(prepared_task, run_folder, [recorder], {}), recorder


def compute_first_losses(task: TaskName, folder: Path) -> list[float]:
    trainer, recorder = build_trainer(prepare_task(task, folder), folder)
    trainer.fit()
    return [event["loss"] for event in recorder.events if event["event"] == "train"]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_first_losses_are_what_they_always_were(task: TaskName, tmp_path: Path) -> None:
    losses = compute_first_losses(task, tmp_path)
    assert losses == pytest.approx(GOLDEN[task], rel=1e-9)
    assert sum(losses[-5:]) < sum(losses[:5])


class FixedSampler:
    """A sampler that gives the batches it was given."""

    steps_per_epoch = 1

    def __init__(self, batches: list[Indices]) -> None:
        self.batches = iter(batches)

    def next_batch(self) -> Indices:
        return next(self.batches)

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """It does not go back."""


def train_one_step(
    task: TaskName, folder: Path, batches: list[Indices], **settings: Any
) -> tuple[float, list[Tensor]]:
    folder.mkdir()
    prepared_task = prepare_task(
        task, folder, **{"train.grad_accumulation": len(batches), "train.max_steps": 1, **settings}
    )
    trainer, recorder = build_trainer(prepared_task, folder)
    trainer.sampler = FixedSampler(batches)
    trainer.fit()
    (loss,) = [event["loss"] for event in recorder.events if event["event"] == "train"]
    return loss, [parameter.detach() for parameter in prepared_task.task.model.parameters()]


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_step_does_not_depend_on_how_its_batch_was_cut(task: TaskName, clip: float, tmp_path: Path) -> None:
    """Plain gradient descent, so that a parameter shows its gradient; halves and unequal parts of one batch."""
    settings = {"train.optimizer": "sgd", "train.lr": 0.5, "train.clip_norm": clip, "train.warmup_steps": 0}
    rows = np.array([0, 7, 3, 21, 14, 40, 33, 8], dtype=np.int64)
    full_batch = train_one_step(task, tmp_path / "whole", [rows], **settings)
    for name, split_points in (("halves", [4]), ("uneven", [1, 6])):
        split_batch = train_one_step(task, tmp_path / name, np.split(rows, split_points), **settings)
        assert split_batch[0] == pytest.approx(full_batch[0], rel=1e-12)
        torch.testing.assert_close(split_batch[1], full_batch[1], rtol=1e-10, atol=1e-12)


def test_the_loss_that_is_told_is_the_mean_over_predictions(tmp_path: Path) -> None:
    prepared_task = prepare_task("translate", tmp_path, **{"train.max_steps": 1, "train.label_smoothing": 0.0})
    rows = np.arange(6)
    batch = prepared_task.train.batch(rows)
    with torch.no_grad():
        expected = prepared_task.task.loss(batch).item() / batch.n_predictions
    trainer, recorder = build_trainer(prepared_task, tmp_path)
    trainer.sampler = FixedSampler([rows])
    trainer.fit()
    assert recorder.events[0]["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    prepared_task = prepare_task("classify", tmp_path)
    trainer, _ = build_trainer(prepared_task, tmp_path)
    with torch.no_grad():
        prepared_task.task.model.classification_head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite at step 1"):
        trainer.fit()
    assert not trainer.folder.model_file.exists()


if __name__ == "__main__":
    for name in TASK_NAMES:
        with tempfile.TemporaryDirectory() as folder:
            losses = [f"{loss:.13g}" for loss in compute_first_losses(name, Path(folder))]
        rows = [", ".join(losses[start : start + 6]) for start in range(0, STEPS, 6)]
        print(f'    "{name}": [', *(f"        {row}," for row in rows), "    ],", sep="\n")
