"""A student learns the probabilities of its teacher, and goes on after a stop as if it had never stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from same_runs import StoppedAfter, assert_same_run, train_run

from triform.config.settings import build_config
from triform.errors import CheckpointError, ConfigError
from triform.experiments.distillation import distill, inherit_settings
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.nn.loss import IGNORE_INDEX
from triform.run import load
from triform.tasks.losses import distillation_loss

STEPS = {"max_steps": 12, "eval_every": 4, "checkpoint_every": 4, "log_every": 2, "batch_size": 8}
QUIET = {"device": "cpu", "quiet": True}


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_loss_mixes_the_divergence_from_the_teacher_with_the_labels(weight: float) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    targets = torch.tensor([0, 3, IGNORE_INDEX, 1, 2])
    config = build_config({"train.distill_weight": weight, "train.distill_temperature": 3.0}).train
    counted = targets != IGNORE_INDEX
    soft_targets = (teacher[counted] / 3).softmax(-1)
    divergence = F.kl_div((student[counted] / 3).log_softmax(-1), soft_targets, reduction="sum")
    labels = F.cross_entropy(student[counted], targets[counted], reduction="sum")
    expected = weight * 9 * divergence + (1 - weight) * labels
    torch.testing.assert_close(distillation_loss(student, teacher, targets, config), expected)
    if weight == 1:
        torch.testing.assert_close(distillation_loss(teacher, teacher, targets, config), torch.zeros_like(expected))


@pytest.fixture
def teacher(rows: str, tmp_path: Path) -> Path:
    """Two classifiers."""
    shared = {"model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}, "train": STEPS, **QUIET}
    return train_seeds("classify", 2, data=rows, out=tmp_path / "two", **shared).path


def test_a_student_has_the_settings_of_its_teacher_and_resumes_with_the_same_bits(
    teacher: Path, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    uninterrupted = distill(teacher, out=tmp_path / "uninterrupted", **QUIET)
    with stopped_after(7):
        distill(teacher, out=tmp_path / "broken", **QUIET)
    resumed = distill(teacher, out=tmp_path / "broken", resume=True, **QUIET)
    assert_same_run(uninterrupted.path, resumed.path)
    member = load(teacher / "seed-0").config
    assert (uninterrupted.config.model, uninterrupted.config.data) == (member.model, member.data)
    assert uninterrupted.config.train.max_steps == 12
    assert uninterrupted.config.train.distill_from == str(teacher)
    small = distill(teacher, out=tmp_path / "small", model={"d_model": 8}, train={"max_steps": 2}, **QUIET)
    assert (small.config.model.d_model, small.config.train.eval_every) == (8, 1)
    small_again = distill(teacher, out=tmp_path / "small", resume=True, **QUIET)  # without repeating the settings
    assert small_again.config == small.config
    other = distill(teacher / "seed-1", out=tmp_path / "single", **QUIET)
    first, second = (run.task.model.encoder.embedding.token_embedding.weight for run in (uninterrupted, other))
    assert not first.equal(second)  # another teacher, other weights


def test_a_student_with_other_validation_data_does_not_refit_its_linear_part(rows: str, tmp_path: Path) -> None:
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2, "term_buckets": 64}
    teacher = train(
        "classify",
        data=rows,
        out=tmp_path / "teacher",
        model=model,
        train=STEPS | {"refit_linear_part": True},
        **QUIET,
    )
    assert distill(teacher.path, out=tmp_path / "same", **QUIET).config.train.refit_linear_part
    for number, settings in enumerate(
        ({"data.valid": rows}, {"data.valid_fraction": 0.0}, {"model.term_buckets": 0})
    ):
        student = distill(teacher.path, out=tmp_path / str(number), **settings, **QUIET)
        assert not student.config.train.refit_linear_part


def test_a_student_that_is_resumed_needs_the_same_teacher(
    teacher: Path, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    with stopped_after(7):
        distill(teacher, out=tmp_path / "one", **QUIET)
    shutil.copy(teacher / "seed-0" / "model.safetensors", teacher / "seed-1")
    with pytest.raises(CheckpointError, match=r"seed-1/model\.safetensors has changed since the run started"):
        distill(teacher, out=tmp_path / "one", resume=True, verify=False, **QUIET)


def test_a_teacher_that_does_not_fit_is_refused(teacher: Path, rows: str, tmp_path: Path) -> None:
    other_rows = tmp_path / "other.tsv"
    other_rows.write_text(Path(rows).read_text().replace("good", "fine"))
    out = tmp_path / "one"
    with pytest.raises(ConfigError, match="cannot teach this model: their labels are bad, good and bad, fine"):
        train_run(str(other_rows), out, {**STEPS, "distill_from": str(teacher)})
    with pytest.raises(ConfigError, match=r"train\.distill_from=.*/none: no such run folder"):
        train_run(rows, out, {**STEPS, "distill_from": str(tmp_path / "none")})
    with pytest.raises(
        ConfigError, match=r"train\.distill_from=\S+ reads at most \d+ tokens; set data\.max_len to"
    ):
        distill(teacher, out=out, **{"data.max_len": 400}, **QUIET)
    with pytest.raises(ConfigError, match="a run cannot learn from itself"):
        distill(teacher, out=teacher / "seed-1", overwrite=True, **QUIET)
    with pytest.raises(ConfigError, match=r"distill_from cannot be combined with train\.r_drop"):
        distill(teacher, out=out, **{"train.r_drop": 1.0}, **QUIET)
    config = load(teacher / "seed-0").config
    assert "train.r_drop" not in inherit_settings(config, teacher / "seed-0", {})
    imported = replace(config, data=replace(config.data, train=""))
    with pytest.raises(ConfigError, match="is an imported model without training data; give the data to train on"):
        inherit_settings(imported, teacher, {})
    assert "data.max_len" in inherit_settings(imported, teacher, {"data.train": "rows.tsv"})
    assert not out.exists()
