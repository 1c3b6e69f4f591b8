"""Processes that each have a part of a model (FSDP) train the model of one, and share its checkpoints."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import train_runs
from safetensors.torch import load_file

import triform
from triform.errors import CheckpointError, TriformError
from triform.training.run_folder import RunFolder

WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath"]
SETTINGS = {
    "model": {"d_model": 12, "d_ff": 20, "n_layers": 2, "n_heads": 2, "dropout": 0.0},
    "data.max_len": 10,
    "tokenizer.kind": "word",
    "train.optimizer": "sgd",  # Adam would enlarge the rounding of gradients that are almost 0
    "train.lr": 0.1,
    "train.schedule": "constant",
    "train.warmup_steps": 0,
    "train.max_steps": 6,
    "train.eval_every": 3,
    "train.checkpoint_every": 3,
    "train.log_every": 2,
}
FSDP = {"train.parallel": "fsdp"}
ENGINES = {"fsdp": "fsdp", "from-one": "fsdp", "ddp": "ddp"}  # of runs that three processes resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("sharded"), random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 8))) for _ in range(60)]
    (path / "classify.csv").write_text("".join(f"{'yes' if 'dune' in text else 'no'},{text}\n" for text in texts))
    (path / "generate.txt").write_text("\n".join(texts))
    (path / "translate.tsv").write_text("".join(f"{text}\t{' '.join(text.split()[::-1])}\n" for text in texts))
    return path


def build_run(folder: Path, name: str, task: str, **settings: Any) -> dict[str, Any]:
    suffix = {"classify": "csv", "generate": "txt", "translate": "tsv"}[task]
    batch = {"train.batch_size": 6}
    return {"name": name, "task": task, "data": str(folder / f"{task}.{suffix}")} | SETTINGS | batch | settings


def build_runs(folder: Path) -> list[dict[str, Any]]:
    lora = {"train.init_from": str(folder / "base"), "train.lora_rank": 2}
    lstm = {"model.kind": "lstm", "model.n_heads": 0, "model.d_ff": 0}
    accumulation = {"train.grad_accumulation": 2, "train.ema_decay": 0.9}
    return [
        build_run(folder, "classify", "classify", **accumulation),
        build_run(folder, "generate", "generate", **{"train.clip_norm": 0.5}),
        build_run(folder, "translate", "translate"),
        build_run(folder, "recurrent", "generate", **lstm),
        build_run(folder, "lora", "classify", **lora),
        build_run(folder, "adam", "classify", **{"train.optimizer": "adam", "train.lr": 1e-3}),
        build_run(folder, "half", "generate", **{"train.max_steps": 3}),
    ]


def train_alone(runs: list[dict[str, Any]], folder: Path) -> None:
    for run in runs:
        arguments = {key: value for key, value in run.items() if key not in ("name", "task")}
        triform.train(run["task"], out=str(folder / run["name"]), device="cpu", quiet=True, **arguments)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """Runs of one process in `1`, and of four with FSDP in `4`."""
    train_alone([build_run(folder, "base", "classify", **{"train.max_steps": 1})], folder)
    train_alone(build_runs(folder), folder / "1")
    train_runs(4, [run | FSDP for run in build_runs(folder)], folder / "4")
    return folder


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def read_checkpoint(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    folder = RunFolder(run)
    checkpoint = folder.latest_checkpoint()
    assert checkpoint is not None
    return folder.read_checkpoint(checkpoint)


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        # The bias of keys does not change attention, so its gradient is rounding, which Adam enlarges.
        if not name.startswith("rng.") and not name.endswith("kv_proj.bias"):
            torch.testing.assert_close(tensor, right[name], atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("name", ["classify", "generate", "translate", "recurrent", "lora", "adam"])
def test_four_processes_with_parts_of_a_model_train_the_model_of_one(name: str, trained: Path) -> None:
    tolerance = 2e-4 if name == "adam" else 1e-5
    assert_close(read_weights(trained / "1" / name), read_weights(trained / "4" / name), tolerance)
    (alone, state), (sharded, sharded_state) = (read_checkpoint(trained / size / name) for size in ("1", "4"))
    assert_close(alone, sharded, tolerance)
    assert state["sampler"] == sharded_state["sampler"]


def test_each_process_writes_a_file_without_pickle_and_all_have_digests(trained: Path) -> None:
    checkpoint = RunFolder(trained / "4" / "half").latest_checkpoint()
    assert checkpoint is not None
    names = {f"tensors-0000{rank}-of-00004.safetensors" for rank in (1, 2, 3, 4)}
    assert {path.name for path in checkpoint.iterdir()} == {*names, "state.json", "digests.json"}
    assert json.loads((checkpoint / "digests.json").read_text())["sha256"].keys() == {*names, "state.json"}
    assert not list(checkpoint.parent.glob(".*"))


def test_a_sharded_checkpoint_opens_like_any_other(trained: Path) -> None:
    run = trained / "4" / "generate"
    latest, alone = (triform.load(trained / size / "generate", device="cpu", checkpoint="latest") for size in "41")
    assert latest.predict("amber birch")[0].output == alone.predict("amber birch")[0].output
    damaged = trained / "damaged"
    shutil.copytree(run, damaged)
    shard = next(damaged.glob("checkpoints/*/tensors-00003-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"tensors-00003-of-00004.safetensors does not match digests.json"):
        triform.load(damaged, device="cpu", checkpoint="latest")
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"tensors-00003-of-00004.safetensors is damaged \(no such file\)"):
        triform.load(damaged, device="cpu", checkpoint="latest")


def build_refused_runs(folder: Path) -> list[dict[str, Any]]:
    """Runs that three processes cannot start."""
    run = build_run(folder, "", "classify", fails=True, valid=str(folder / "classify.csv"))
    (folder / "other.csv").write_text("yes,amber dune\nno,birch\n" * 9)
    changes: list[dict[str, Any]] = [
        {"ranks": {"2": {"train.lr": 0.5}}},
        {"ranks": {"1": {"data": str(folder / "other.csv")}}},
        {"ranks": {"1": {"valid": str(folder / "missing.csv")}}},
        {"train.exact": True},
        {"data": str(folder / "missing.csv")},
    ]
    return [run | change | {"name": f"refused-{number}"} for number, change in enumerate(changes)]


@pytest.fixture(scope="module")
def refusals(trained: Path) -> list[str]:
    """The errors of runs that cannot start, in a launch that also resumes checkpoints with three processes."""
    resumed = build_run(trained, "", "generate", resume=True)
    for source, target in (("4", "fsdp"), ("1", "from-one"), ("4", "ddp")):
        shutil.copytree(trained / source / "half", trained / "three" / target)
    runs = [resumed | {"name": name, "train.parallel": engine} for name, engine in ENGINES.items()]
    return train_runs(3, runs + build_refused_runs(trained), trained / "three")


def test_input_that_differs_between_processes_is_named_in_one_line(refusals: list[str], trained: Path) -> None:
    assert len(refusals) == 5, refusals
    assert "train.lr is 0.5 in rank 2 and 0.1 in rank 0" in refusals[0]
    assert "data.train is " in refusals[1]
    assert "rank 1: " in refusals[2]
    assert "missing.csv" in refusals[2]
    assert "must be 1, 2, 4 or 8, not 3" in refusals[3]
    assert "missing.csv" in refusals[4]
    assert not list(trained.glob("three/refused-*/model.safetensors"))


@pytest.mark.usefixtures("refusals")
def test_checkpoints_resume_with_any_number_of_processes_and_either_engine(trained: Path) -> None:
    run = build_run(trained, "", "generate")
    shutil.copytree(trained / "4" / "half", trained / "one")
    train_alone([run | {"name": "one", "resume": True}, run | {"name": "uninterrupted"}], trained)
    expected, state = read_checkpoint(trained / "uninterrupted")
    for path in (trained / "one", *(trained / "three" / name for name in ENGINES)):
        tensors, resumed_state = read_checkpoint(path)
        assert_close(tensors, expected)
        assert resumed_state["sampler"] == state["sampler"]


def test_another_shape_is_refused(trained: Path) -> None:
    run = build_run(trained, "4/half", "generate", resume=True)
    with pytest.raises(TriformError, match=r"model\.d_model"):
        train_alone([run | {"model": {"d_model": 16}}], trained)
