"""How long a run trains: stopping early, and training longer than before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from same_runs import assert_same_bits, assert_same_run, events

from triform.config import Config
from triform.errors import ConfigError, InterruptedRun
from triform.launch import train
from triform.presets import SYSTEMS
from triform.reproduce import systems as reference
from triform.reproduce.runner import Asked, run_variant
from triform.seeds import train_seeds
from triform.settings import build
from triform.tasks.defaults import settle_patience
from triform.training.folder import RunFolder
from triform.training.trainer import Trainer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
PACE = {"max_steps": 8, "eval_every": 4, "log_every": 3, "batch_size": 8, "warmup_steps": 2, "checkpoint_every": 4}


def run(rows: str, out: Path, pace: dict[str, Any], **more: Any) -> Path:
    asked = {"data": rows, "out": out, "device": "cpu", "quiet": True, "model": MODEL, "train": pace} | more
    return train("classify", **asked).path


def longer(out: Path, **more: Any) -> Path:
    return train("classify", out=out, device="cpu", resume=True, **{"quiet": True} | more).path


def state(path: Path) -> dict[str, Any]:
    latest = RunFolder(path).latest_checkpoint()
    assert latest is not None
    return RunFolder(path).read_state(latest)


@pytest.mark.parametrize("schedule", ["constant", "noam", "plateau"])
@pytest.mark.parametrize("stopped", [False, True], ids=["finished", "stopped"])
def test_trained_longer_a_run_equals_one_that_was_as_long_from_the_start(
    schedule: str, stopped: bool, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = PACE | {"schedule": schedule, "plateau_patience": 0, "lr": 0.01}
    straight = run(rows, tmp_path / "straight", pace | {"max_steps": 15})
    if stopped:
        step = Trainer.step
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", lambda self: (step(self), self.progress.step == 5 and self.stop()))
            with pytest.raises(InterruptedRun):
                run(rows, tmp_path / "run", pace)
    else:
        run(rows, tmp_path / "run", pace)
    out = longer(tmp_path / "run", train={"max_steps": 15})
    assert RunFolder(out).read_config() == RunFolder(straight).read_config()
    assert_same_bits(straight, out)
    if not stopped:
        assert events(out) == events(straight)
    assert (out / "report.html").exists()


def test_seeds_are_trained_longer_too(rows: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": rows, "device": "cpu", "quiet": True, "model": MODEL}
    pace = PACE | {"schedule": "constant"}
    straight = train_seeds("classify", 2, out=tmp_path / "straight", train=pace | {"max_steps": 12}, **asked)
    train_seeds("classify", 2, out=tmp_path / "seeds", train=pace, **asked)
    more = train_seeds("classify", 2, out=tmp_path / "seeds", resume=True, train={"max_steps": 12}, device="cpu")
    for one, other in zip(straight.folders, more.folders, strict=True):
        assert_same_bits(one, other)


def test_epochs_can_be_raised_and_steps_given_instead(rows: str, tmp_path: Path) -> None:
    pace = {name: value for name, value in PACE.items() if name != "max_steps"} | {"epochs": 1.0, "patience": 0}
    out = run(rows, tmp_path / "run", pace)
    first = state(out)["progress"]["step"]
    longer(out, train={"epochs": 2})
    assert state(out)["progress"]["step"] == 2 * first
    with pytest.raises(ConfigError, match=r"longer, not shorter: train.max_steps: 3"):
        longer(out, train={"max_steps": 3})
    longer(out, train={"max_steps": 2 * first + 1})
    assert state(out)["progress"]["step"] == 2 * first + 1
    assert RunFolder(out).read_config().train.epochs == 0


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        ({"schedule": "cosine"}, "not the same as that of having trained so long from the start"),
        ({"schedule": "constant", "max_steps": 7}, "was also validated at step 7, where it ended"),
    ],
)
def test_where_a_longer_run_is_not_the_same_it_says_so(
    pace: dict[str, Any], words: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(rows, tmp_path / "run", PACE | pace)
    longer(tmp_path / "run", train={"max_steps": 12}, quiet=False)
    assert words in capsys.readouterr().err
    assert state(tmp_path / "run")["progress"]["step"] == 12


def test_a_longer_run_that_was_killed_before_it_saved_goes_on_and_its_metrics_are_whole(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = PACE | {"schedule": "constant", "log_every": 1}
    straight = run(rows, tmp_path / "straight", pace | {"max_steps": 15})
    out, step = run(rows, tmp_path / "run", pace), Trainer.step

    def killed(self: Trainer) -> None:
        step(self)
        if self.progress.step == 11:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        with pytest.raises(InterruptedRun):
            longer(out, train={"max_steps": 15})
    assert_same_run(straight, longer(out))


def test_interrupted_in_its_last_validation_a_run_is_not_validated_there_when_it_is_trained_longer(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = PACE | {"schedule": "constant", "max_steps": 7}
    straight, judge = run(rows, tmp_path / "straight", pace | {"max_steps": 12}), Trainer.judge

    def stopping(self: Trainer, data: Any) -> Any:
        if self.progress.step == 7:
            self.stop()
        return judge(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "judge", stopping)
        with pytest.raises(InterruptedRun, match="stopped at step 7"):
            run(rows, tmp_path / "run", pace)
    out = longer(tmp_path / "run", train={"max_steps": 12})
    assert_same_bits(straight, out)
    assert [event["step"] for event in events(out) if event["event"] == "valid"] == [4, 8, 12]


def test_a_run_that_stopped_early_goes_on_only_with_more_patience(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pace = PACE | {"schedule": "constant", "lr": 0.2, "eval_every": 1, "max_steps": 12}
    straight = run(rows, tmp_path / "straight", pace | {"patience": 0, "max_steps": 14})
    out = run(rows, tmp_path / "run", pace | {"patience": 1})
    stopped = state(out)["progress"]["step"]
    assert stopped < 12
    longer(out, train={"max_steps": 14}, quiet=False)
    assert f"stopped early at step {stopped}" in capsys.readouterr().err
    assert state(out)["progress"]["step"] == stopped
    longer(out, train={"patience": 0})
    assert_same_bits(straight, out)
    with pytest.raises(ConfigError, match=r"longer, not shorter: train.patience: 3"):
        longer(out, train={"patience": 3})


def test_other_settings_cannot_be_changed_on_a_resume(rows: str, tmp_path: Path) -> None:
    out = run(rows, tmp_path / "run", PACE)
    with pytest.raises(ConfigError, match=r"these differ: train.lr"):
        longer(out, train={"max_steps": 20, "lr": 0.5})


# -- early stopping


@pytest.mark.parametrize(
    ("task", "n_valid", "per_epoch", "asked", "patience"),
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
    task: Any, n_valid: int, per_epoch: int, asked: int, patience: int
) -> None:
    config = build({"task": task, "train.patience": asked}, Config())
    assert settle_patience(config, n_valid, per_epoch).train.patience == patience


def test_a_classifier_whose_validation_loss_keeps_rising_stops_early_by_default(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that a classifier would get which overfits: the loss falls, then rises."""
    losses = iter([0.9, 0.7, *(0.8 + 0.1 * n for n in range(30))])
    monkeypatch.setattr(Trainer, "judge", lambda *_: {"loss": next(losses), "accuracy": 0.5, "f1": 0.5, "rows": 9})
    out = run(rows, tmp_path / "run", PACE | {"max_steps": 60, "eval_every": 3}, quiet=False)
    patience = RunFolder(out).read_config().train.patience
    assert patience == 5
    assert "stops early after 5 validations without a better score or a lower loss" in capsys.readouterr().err
    assert state(out)["finished"] == "patience"
    assert state(out)["progress"]["step"] == 3 * (2 + patience)


def test_a_falling_loss_is_progress_while_the_accuracy_stands_still(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracy was highest by chance at first: the weights of that validation are kept, but training goes on."""
    scores = iter((0.6 if n == 0 else 0.5, 2.0 - 0.05 * n) for n in range(30))

    def judge(*_: object) -> dict[str, float]:
        accuracy, loss = next(scores)
        return {"loss": loss, "accuracy": accuracy, "f1": accuracy, "rows": 9}

    monkeypatch.setattr(Trainer, "judge", judge)
    out = run(rows, tmp_path / "run", PACE | {"max_steps": 40, "eval_every": 2})
    assert state(out)["finished"] == "max_steps"
    assert state(out)["progress"]["best_step"] == 2


def test_presets_of_reference_systems_are_never_stopped_early_unless_they_say_so() -> None:
    for name, system in SYSTEMS.items():
        config = system()
        if config.task == "classify" and config.train.max_steps + config.train.epochs > 0:
            assert config.train.patience == 0, name


@pytest.mark.parametrize("system", reference.SYSTEMS.values(), ids=lambda system: system.name)
def test_reproducing_a_system_never_stops_early_unless_it_says_so(
    system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trained(Exception):
        pass

    def trained(*_: Any, **settings: Any) -> None:
        raise Trained(settings["train.patience"])

    monkeypatch.setattr("triform.reproduce.runner.train_seeds", trained)
    material: Any = SimpleNamespace(system=system, settings=lambda variant: {})
    for variant in system.variants:
        with pytest.raises(Trained) as caught:
            run_variant(variant, material, Asked(), tmp_path)
        assert caught.value.args == (variant.settings.get("train.patience", 0),)
