"""The first losses of each form, pinned: a change that means no harm leaves them where they are.

Dropout is off, so that only the initial weights are random, and those torch draws alike in every version.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from triform.config import Config, TaskName
from triform.data.loader import Indices
from triform.errors import DivergedError
from triform.settings import build
from triform.tasks import TASKS, Prepared
from triform.train.folder import RunFolder
from triform.train.trainer import Event, Trainer

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
FORMS: dict[TaskName, dict[str, Any]] = {
    "classify": {"train.batch_tokens": 64, "model.norm_position": "post"},
    "generate": {"train.batch_size": 4, "train.schedule": "noam"},
    "translate": {"train.batch_tokens": 64, "train.label_smoothing": 0.1},
}
GOLDEN: dict[TaskName, list[float]] = {
    "classify": [
        0.9056275774825,
        0.7121296222564,
        0.6553558005139,
        0.7441055024243,
        0.8442552512363,
        0.7675102876494,
        0.4793150014165,
        0.9871406942622,
        0.4103348550167,
        0.3908753951033,
        0.4406139321779,
        0.3943485038752,
        0.6989384426888,
        0.4217742442112,
        0.3580698787124,
        0.6973685848847,
        0.4576407422516,
        0.407375464548,
        0.3473976047553,
        0.223174182738,
    ],
    "generate": [
        2.79802101718,
        2.74195554224,
        2.797649904422,
        2.755433269069,
        2.628018566941,
        2.61088193059,
        2.509883505307,
        2.647584994325,
        2.54573860044,
        2.494336973131,
        2.609656027803,
        2.511423994812,
        2.492009230265,
        2.500855855556,
        2.520244976229,
        2.539642721655,
        2.483351546597,
        2.462531290469,
        2.479737943112,
        2.486138551815,
    ],
    "translate": [
        2.757226662705,
        2.71655444518,
        2.62540298191,
        2.555365267667,
        2.625575788213,
        2.582538872895,
        2.498693752118,
        2.49563680093,
        2.435202016314,
        2.456374352378,
        2.493989320388,
        2.500942441772,
        2.303305493371,
        2.418150948122,
        2.36902289507,
        2.495259961165,
        2.391344642766,
        2.487028782667,
        2.429397196699,
        2.279453569645,
    ],
}


class Ears:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def write_data(task: TaskName, folder: Path) -> Path:
    """Sentences drawn by Python's own generator, whose stream never changes."""
    rng = random.Random(11)
    texts = [[rng.choice(WORDS) for _ in range(rng.randint(2, 9))] for _ in range(90)]
    if task == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(" ".join(words) for words in texts), encoding="utf-8")
        return path
    path, heading = folder / f"{task}.tsv", "text\tlabel" if task == "classify" else "source\ttarget"
    second = [("no", "yes")["amber" in words] if task == "classify" else " ".join(words[::-1]) for words in texts]
    lines = [f"{' '.join(words)}\t{other}" for words, other in zip(texts, second, strict=True)]
    path.write_text("\n".join([heading, *lines]) + "\n", encoding="utf-8")
    return path


def prepared(task: TaskName, folder: Path, **asked: Any) -> Prepared:
    settings = {"task": task, "data.train": str(write_data(task, folder)), **TINY, **FORMS[task], **asked}
    torch.set_default_dtype(torch.float64)  # weights drawn in float32 differ a little from CPU to CPU
    try:
        return TASKS[task].prepare(build(settings, Config()), folder / "run")
    finally:
        torch.set_default_dtype(torch.float32)


def trainer_of(made: Prepared, folder: Path) -> tuple[Trainer, Ears]:
    run, ears = RunFolder(folder / "run"), Ears()
    run.create()
    return Trainer(made, run, [ears], {}), ears


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_first_losses_are_what_they_always_were(task: TaskName, tmp_path: Path) -> None:
    trainer, ears = trainer_of(prepared(task, tmp_path), tmp_path)
    trainer.fit()
    losses = [event["loss"] for event in ears.events if event["event"] == "train"]
    assert losses == pytest.approx(GOLDEN[task], rel=1e-9)
    assert sum(losses[-5:]) < sum(losses[:5])


class Given:
    """A sampler that gives the batches it was given."""

    steps_per_epoch = 1

    def __init__(self, batches: list[Indices]) -> None:
        self.batches = iter(batches)

    def next(self) -> Indices:
        return next(self.batches)

    def state(self) -> dict[str, int]:
        return {}

    def restore(self, state: dict[str, int]) -> None:
        """It does not go back."""


def after_one_step(
    task: TaskName, folder: Path, batches: list[Indices], **asked: Any
) -> tuple[float, list[Tensor]]:
    folder.mkdir()
    made = prepared(task, folder, **{"train.accumulate": len(batches), "train.max_steps": 1, **asked})
    trainer, ears = trainer_of(made, folder)
    trainer.sampler = Given(batches)
    trainer.fit()
    (loss,) = [event["loss"] for event in ears.events if event["event"] == "train"]
    return loss, [parameter.detach() for parameter in made.task.model.parameters()]


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_step_does_not_depend_on_how_its_batch_was_cut(task: TaskName, clip: float, tmp_path: Path) -> None:
    """Plain gradient descent, so that a parameter shows its gradient; halves and unequal parts of one batch."""
    asked = {"train.optimizer": "sgd", "train.lr": 0.5, "train.clip_norm": clip, "train.warmup_steps": 0}
    rows = np.array([0, 7, 3, 21, 14, 40, 33, 8], dtype=np.int64)
    whole = after_one_step(task, tmp_path / "whole", [rows], **asked)
    for name, places in (("halves", [4]), ("uneven", [1, 6])):
        parts = after_one_step(task, tmp_path / name, np.split(rows, places), **asked)
        assert parts[0] == pytest.approx(whole[0], rel=1e-12)
        torch.testing.assert_close(parts[1], whole[1], rtol=1e-10, atol=1e-12)


def test_the_loss_that_is_told_is_the_mean_over_predictions(tmp_path: Path) -> None:
    made = prepared("translate", tmp_path, **{"train.max_steps": 1, "train.label_smoothing": 0.0})
    rows = np.arange(6)
    batch = made.train.batch(rows)
    with torch.no_grad():
        expected = made.task.loss(batch).item() / batch.weight
    trainer, ears = trainer_of(made, tmp_path)
    trainer.sampler = Given([rows])
    trainer.fit()
    assert ears.events[0]["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    made = prepared("classify", tmp_path)
    trainer, _ = trainer_of(made, tmp_path)
    with torch.no_grad():
        made.task.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite at step 1"):
        trainer.fit()
    assert not trainer.folder.model_file.exists()
