"""How long a run trains: stopping early, and training longer than before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reproduce.options import ReproduceOptions
from reproduce.runner import _prepare_variant
from reproduce.systems import load_systems
from same_runs import MODEL, StoppedAfter, assert_same_bits, assert_same_run, read_events, train_run

from triform.config import Config
from triform.config.presets import SYSTEM_PRESETS
from triform.config.settings import build_config
from triform.errors import ConfigError, RunInterruptedError
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.tasks.defaults import resolve_patience
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer

TRAIN_SETTINGS = {
    "max_steps": 8,
    "eval_every": 4,
    "log_every": 3,
    "batch_size": 8,
    "warmup_steps": 2,
    "checkpoint_every": 4,
}


def resume_run(out: Path, **kwargs: Any) -> Path:
    return train("classify", out=out, device="cpu", resume=True, **{"quiet": True} | kwargs).path


def read_state(path: Path) -> dict[str, Any]:
    checkpoint = RunFolder(path).latest_checkpoint()
    assert checkpoint is not None
    return RunFolder(path).read_state(checkpoint)


@pytest.mark.parametrize("schedule", ["constant", "noam", "plateau"])
@pytest.mark.parametrize("stopped", [False, True], ids=["finished", "stopped"])
def test_trained_longer_a_run_equals_one_that_was_as_long_from_the_start(
    schedule: str,
    stopped: bool,
    rows: str,
    tmp_path: Path,
    stopped_after: StoppedAfter,
) -> None:
    train_settings = TRAIN_SETTINGS | {"schedule": schedule, "plateau_patience": 0, "lr": 0.01}
    uninterrupted = train_run(rows, tmp_path / "straight", train_settings | {"max_steps": 15})
    if stopped:
        with stopped_after(5):
            train_run(rows, tmp_path / "run", train_settings)
    else:
        train_run(rows, tmp_path / "run", train_settings)
    out = resume_run(tmp_path / "run", train={"max_steps": 15})
    assert RunFolder(out).read_config() == RunFolder(uninterrupted).read_config()
    assert_same_bits(uninterrupted, out)
    if not stopped:
        assert read_events(out) == read_events(uninterrupted)
    assert (out / "report.html").exists()


def test_seeds_are_trained_longer_too(rows: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": rows, "device": "cpu", "quiet": True, "model": MODEL}
    train_settings = TRAIN_SETTINGS | {"schedule": "constant"}
    uninterrupted = train_seeds(
        "classify", 2, out=tmp_path / "straight", train=train_settings | {"max_steps": 12}, **settings
    )
    train_seeds("classify", 2, out=tmp_path / "seeds", train=train_settings, **settings)
    resumed = train_seeds("classify", 2, out=tmp_path / "seeds", resume=True, train={"max_steps": 12}, device="cpu")
    for first, second in zip(uninterrupted.folders, resumed.folders, strict=True):
        assert_same_bits(first, second)


def test_epochs_can_be_raised_and_steps_given_instead(rows: str, tmp_path: Path) -> None:
    train_settings = {name: value for name, value in TRAIN_SETTINGS.items() if name != "max_steps"} | {
        "epochs": 1.0,
        "patience": 0,
    }
    out = train_run(rows, tmp_path / "run", train_settings)
    first_steps = read_state(out)["progress"]["step"]
    resume_run(out, train={"epochs": 2})
    assert read_state(out)["progress"]["step"] == 2 * first_steps
    with pytest.raises(ConfigError, match=r"longer, not shorter: train.max_steps: 3"):
        resume_run(out, train={"max_steps": 3})
    resume_run(out, train={"max_steps": 2 * first_steps + 1})
    assert read_state(out)["progress"]["step"] == 2 * first_steps + 1
    assert RunFolder(out).read_config().train.epochs == 0


@pytest.mark.parametrize(
    ("train_settings", "message"),
    [
        ({"schedule": "cosine"}, "differs from that of a run with as many steps from the start"),
        ({"schedule": "constant", "max_steps": 7}, "was also validated at step 7, where it ended"),
    ],
)
def test_where_a_longer_run_is_not_the_same_it_says_so(
    train_settings: dict[str, Any], message: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_run(rows, tmp_path / "run", TRAIN_SETTINGS | train_settings)
    resume_run(tmp_path / "run", train={"max_steps": 12}, quiet=False)
    assert message in capsys.readouterr().err
    assert read_state(tmp_path / "run")["progress"]["step"] == 12


def test_a_longer_run_that_was_killed_before_it_saved_goes_on_and_its_metrics_are_whole(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_settings = TRAIN_SETTINGS | {"schedule": "constant", "log_every": 1}
    uninterrupted = train_run(rows, tmp_path / "straight", train_settings | {"max_steps": 15})
    out, step = train_run(rows, tmp_path / "run", train_settings), Trainer.step

    def kill_at_step(self: Trainer) -> None:
        step(self)
        if self.progress.step == 11:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", kill_at_step)
        with pytest.raises(RunInterruptedError):
            resume_run(out, train={"max_steps": 15})
    assert_same_run(uninterrupted, resume_run(out))


def test_interrupted_in_its_last_validation_a_run_is_not_validated_there_when_it_is_trained_longer(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_settings = TRAIN_SETTINGS | {"schedule": "constant", "max_steps": 7}
    uninterrupted, original_evaluate = (
        train_run(rows, tmp_path / "straight", train_settings | {"max_steps": 12}),
        Trainer.evaluate,
    )

    def stop_then_evaluate(self: Trainer, data: Any) -> Any:
        if self.progress.step == 7:
            self.stop()
        return original_evaluate(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", stop_then_evaluate)
        with pytest.raises(RunInterruptedError, match="stopped at step 7"):
            train_run(rows, tmp_path / "run", train_settings)
    out = resume_run(tmp_path / "run", train={"max_steps": 12})
    assert_same_bits(uninterrupted, out)
    assert [event["step"] for event in read_events(out) if event["event"] == "valid"] == [4, 8, 12]


def test_a_run_that_stopped_early_goes_on_only_with_more_patience(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_settings = TRAIN_SETTINGS | {"schedule": "constant", "lr": 0.2, "eval_every": 1, "max_steps": 12}
    uninterrupted = train_run(rows, tmp_path / "straight", train_settings | {"patience": 0, "max_steps": 14})
    out = train_run(rows, tmp_path / "run", train_settings | {"patience": 1})
    stopped_step = read_state(out)["progress"]["step"]
    assert stopped_step < 12
    resume_run(out, train={"max_steps": 14}, quiet=False)
    assert f"stopped early at step {stopped_step}" in capsys.readouterr().err
    assert read_state(out)["progress"]["step"] == stopped_step
    resume_run(out, train={"patience": 0})
    assert_same_bits(uninterrupted, out)
    with pytest.raises(ConfigError, match=r"longer, not shorter: train.patience: 3"):
        resume_run(out, train={"patience": 3})


def test_other_settings_cannot_be_changed_on_a_resume(rows: str, tmp_path: Path) -> None:
    out = train_run(rows, tmp_path / "run", TRAIN_SETTINGS)
    with pytest.raises(ConfigError, match=r"these differ: train.lr"):
        resume_run(out, train={"max_steps": 20, "lr": 0.5})


# -- early stopping


@pytest.mark.parametrize(
    ("task", "n_valid", "per_epoch", "patience_setting", "patience"),
    [
        ("classify", 100, 1, -1, 5),
        ("classify", 500, 1, -1, 4),
        ("classify", 5_000, 1, -1, 3),
        ("classify", 5_000, 12, -1, 12),
        ("classify", 0, 1, -1, 0),
        ("classify", 100, 1, 0, 0),
        ("classify", 100, 1, 7, 7),
        ("generate", 100, 1, -1, 0),
        ("translate", 100, 1, -1, 0),
    ],
)
def test_patience_is_chosen_for_classifiers_from_the_data(
    task: Any, n_valid: int, per_epoch: int, patience_setting: int, patience: int
) -> None:
    config = build_config({"task": task, "train.patience": patience_setting}, Config())
    assert resolve_patience(config, n_valid, per_epoch).train.patience == patience


def test_a_classifier_whose_validation_loss_keeps_rising_stops_early_by_default(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that a classifier would get which overfits: the loss falls, then rises."""
    losses = iter([0.9, 0.7, *(0.8 + 0.1 * n for n in range(30))])
    monkeypatch.setattr(
        Trainer, "evaluate", lambda *_: {"loss": next(losses), "accuracy": 0.5, "f1": 0.5, "rows": 9}
    )
    out = train_run(rows, tmp_path / "run", TRAIN_SETTINGS | {"max_steps": 60, "eval_every": 3}, quiet=False)
    patience = RunFolder(out).read_config().train.patience
    assert patience == 5
    assert "stops early after 5 validations without a better metric or a lower loss" in capsys.readouterr().err
    assert read_state(out)["finished"] == "patience"
    assert read_state(out)["progress"]["step"] == 3 * (2 + patience)


def test_a_falling_loss_is_progress_while_the_accuracy_stands_still(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracy was highest by chance at first: the weights of that validation are kept, but training goes on."""
    metrics = iter((0.6 if n == 0 else 0.5, 2.0 - 0.05 * n) for n in range(30))

    def fake_evaluate(*_: object) -> dict[str, float]:
        accuracy, loss = next(metrics)
        return {"loss": loss, "accuracy": accuracy, "f1": accuracy, "rows": 9}

    monkeypatch.setattr(Trainer, "evaluate", fake_evaluate)
    out = train_run(rows, tmp_path / "run", TRAIN_SETTINGS | {"max_steps": 40, "eval_every": 2})
    assert read_state(out)["finished"] == "max_steps"
    assert read_state(out)["progress"]["best_step"] == 2


def test_presets_of_reference_systems_are_never_stopped_early_unless_they_say_so() -> None:
    for name, system in SYSTEM_PRESETS.items():
        config = system()
        if config.task == "classify" and config.train.max_steps + config.train.epochs > 0:
            assert config.train.patience == 0, name


@pytest.mark.parametrize("system", load_systems().values(), ids=lambda system: system.name)
def test_reproducing_a_system_never_stops_early_unless_it_says_so(system: Any, tmp_path: Path) -> None:
    def base_model(variant: Any) -> dict[str, str]:
        return {"train.init_from": variant.init_from} if variant.init_from else {}

    data: Any = SimpleNamespace(system=system, settings=base_model)
    for variant in system.variants:
        prepared = _prepare_variant(variant, data, ReproduceOptions(), tmp_path)
        assert prepared.spec.settings["train.patience"] == variant.settings.get("train.patience", 0)
