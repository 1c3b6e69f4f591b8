"""A run that was stopped before it kept a model answers with the weights of its latest checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from same_runs import StoppedAfter

import triform
from triform.training.run_folder import RunFolder
from triform.training.tensors import read_tensors

TINY: dict[str, Any] = {"model": {"d_model": 16, "n_heads": 2, "n_layers": 1}, "device": "cpu", "quiet": True}
NOTICE = "training was interrupted at step 3, before the first validation"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n % 7}\n" for n in range(60)), encoding="utf-8")
    return str(path)


@pytest.fixture
def train_interrupted(rows: str, tmp_path: Path, stopped_after: StoppedAfter) -> Callable[..., Path]:
    """Trains a run that is stopped after its third step."""

    def train(**settings: Any) -> Path:
        path = tmp_path / "run"
        settings["train"] = {"max_steps": 9, "eval_every": 9, **settings.get("train", {})}
        with stopped_after(3):
            triform.train("classify", data=rows, out=path, device="cpu", quiet=True, **settings)
        assert not (path / "model.safetensors").exists()
        return path

    return train


def test_an_interrupted_run_answers_with_its_latest_checkpoint_and_says_so(
    rows: str, tmp_path: Path, train_interrupted: Callable[..., Path]
) -> None:
    path = train_interrupted(model=TINY["model"])
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    run = triform.load(path, device="cpu")
    assert torch.rand(2).equal(expected)
    assert len(run.notices) == 1
    assert NOTICE in run.notices[0]
    saved = read_tensors(next(path.glob("checkpoints/step-*")) / "tensors.safetensors")
    for name, parameter in run.task.model.named_parameters():
        assert parameter.equal(saved[f"model.{name}"])
        assert parameter.requires_grad
    assert run.predict(["thing 3"])[0].output in ("good", "bad")
    assert run.evaluate(rows)["rows"] == 60
    assert run.explain("thing 3").maps
    finished = triform.train("classify", data=rows, out=path, resume=True, device="cpu", quiet=True)
    assert finished.notices == ()


def test_an_interrupted_lora_run_has_its_adapters_merged(
    rows: str, tmp_path: Path, train_interrupted: Callable[..., Path]
) -> None:
    base = triform.train("classify", data=rows, out=tmp_path / "base", train={"max_steps": 2}, **TINY)
    lora = {"lora_rank": 2, "lr": 0.1}
    path = train_interrupted(init_from=str(base.path), train=lora)
    run = triform.load(path, device="cpu")
    names = [name for name, _ in run.task.model.named_parameters()]
    assert names == [name for name, _ in base.task.model.named_parameters()]
    assert run.predict(["thing 3"])[0].probabilities != base.predict(["thing 3"])[0].probabilities


def test_without_a_checkpoint_or_with_a_lost_model_the_error_says_so(
    rows: str, tmp_path: Path, train_interrupted: Callable[..., Path]
) -> None:
    path = train_interrupted(model=TINY["model"])
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(triform.CheckpointError, match="has no model and no checkpoint yet"):
        triform.load(path, device="cpu")
    finished = triform.train("classify", data=rows, out=tmp_path / "whole", train={"max_steps": 2}, **TINY)
    (finished.path / "model.safetensors").unlink()
    with pytest.raises(triform.CheckpointError, match=r"model\.safetensors"):
        triform.load(finished.path, device="cpu")


def test_an_estimator_is_not_made_from_a_run_without_a_model(
    rows: str, tmp_path: Path, train_interrupted: Callable[..., Path]
) -> None:
    estimators = pytest.importorskip("triform.sklearn")
    path = train_interrupted(model=TINY["model"])
    with pytest.raises(triform.CheckpointError, match="has no model yet"):
        estimators.TextClassifier.from_run(path)


def test_the_latest_checkpoint_is_loaded_instead_of_the_best_weights_on_request(rows: str, tmp_path: Path) -> None:
    settings = {"max_steps": 6, "eval_every": 2, "lr": 0.1}
    path = triform.train("classify", data=rows, out=tmp_path / "run", train=settings, **TINY).path
    best = triform.load(path, device="cpu")
    latest = triform.load(path, device="cpu", checkpoint="latest")
    assert (best.step, latest.step) == (None, 6)
    saved = read_tensors(path / "checkpoints/step-000000006/tensors.safetensors")
    for name, parameter in latest.task.model.named_parameters():
        assert parameter.equal(saved[f"model.{name}"])
    (path / "model.safetensors").unlink()  # a run in training may have none yet
    assert triform.load(path, device="cpu", checkpoint="latest").step == 6


def test_a_checkpoint_that_training_replaces_while_it_is_read_is_read_again(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY).path
    read_checkpoint = RunFolder.read_checkpoint

    def read_while_replaced(folder: RunFolder, checkpoint: Path) -> Any:
        if checkpoint.name == "step-000000002":
            checkpoint.rename(checkpoint.with_name("step-000000003"))
        return read_checkpoint(folder, checkpoint)

    monkeypatch.setattr(RunFolder, "read_checkpoint", read_while_replaced)
    assert triform.load(path, device="cpu", checkpoint="latest").step == 3
    (path / "checkpoints/step-000000003/tensors.safetensors").unlink()
    with pytest.raises(triform.CheckpointError, match=r"tensors\.safetensors"):
        triform.load(path, device="cpu", checkpoint="latest")


def test_the_latest_checkpoint_needs_one_and_no_adapter(rows: str, tmp_path: Path) -> None:
    path = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY).path
    with pytest.raises(triform.ConfigError, match="checkpoint must be best or latest, found 'newest'"):
        triform.load(path, checkpoint="newest")  # type: ignore[arg-type]
    with pytest.raises(triform.ConfigError, match="an adapter applies to the best weights"):
        triform.load(path, checkpoint="latest", adapter=tmp_path / "adapter.safetensors")
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(triform.CheckpointError, match="has no checkpoint; a run writes them while it trains"):
        triform.load(path, device="cpu", checkpoint="latest")
