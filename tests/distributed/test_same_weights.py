"""Several processes train the model of one: the same bits with `train.exact`, the same up to rounding without."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import train_runs
from safetensors.torch import load_file

import triform

TINY = {
    "model": {"d_model": 16, "d_ff": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.0},
    "data.max_len": 12,
    "tokenizer.kind": "word",
}
TRAIN = {"lr": 3e-3, "max_steps": 6, "eval_every": 3, "checkpoint_every": 3, "log_every": 2}
RUNS_OF_FOUR = (
    "exact-classify",
    "exact-generate",
    "exact-translate",
    "ddp-translate",
    "lora",
)
WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files for the three tasks, with texts of different lengths."""
    path, rng = tmp_path_factory.mktemp("runs"), random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 10))) for _ in range(90)]
    (path / "classify.csv").write_text("".join(f"{'yes' if 'dune' in text else 'no'},{text}\n" for text in texts))
    (path / "generate.txt").write_text("\n".join(texts))
    (path / "translate.tsv").write_text("".join(f"{text}\t{' '.join(text.split()[::-1])}\n" for text in texts))
    return path


def build_run(folder: Path, name: str, task: str, **train: Any) -> dict[str, Any]:
    suffix = {"classify": "csv", "generate": "txt", "translate": "tsv"}[task]
    batch = {"batch_size": 5} if task == "generate" else {"batch_tokens": 60}
    data = {"name": name, "task": task, "data": str(folder / f"{task}.{suffix}")}
    settings = {f"train.{key}": value for key, value in (TRAIN | batch | train).items() if "." not in key}
    return data | TINY | settings | {key: value for key, value in train.items() if "." in key}


def build_runs(folder: Path) -> list[dict[str, Any]]:
    """The same runs for every number of processes."""
    tasks = ("classify", "generate", "translate")
    dropout = {"model.dropout": 0.2}
    sgd = {"optimizer": "sgd", "lr": 0.1}  # Adam would enlarge the rounding of gradients that are almost 0
    lora = {"init_from": str(folder / "base"), "lora_rank": 2, "batch_size": 3, "batch_tokens": 0}
    lstm = {"model.kind": "lstm", "model.n_heads": 0, "model.d_ff": 0}
    return [
        *(build_run(folder, f"exact-{task}", task, exact=True, grad_accumulation=2, **dropout) for task in tasks),
        *(build_run(folder, f"ddp-{task}", task, grad_accumulation=2, ema_decay=0.9, **sgd) for task in tasks),
        build_run(folder, "r-drop", "classify", exact=True, r_drop=1.0, **dropout),
        build_run(folder, "simcut", "translate", exact=True, token_cutoff=0.2, simcut=2.0, **dropout),
        build_run(folder, "recurrent", "generate", **sgd, **lstm),
        build_run(folder, "frozen", "translate", freeze_layers=1, **sgd, **{"model.tie_embeddings": False}),
        build_run(folder, "lora", "classify", **sgd, **lora),
    ]


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[int, Path]:
    """The folders of the runs by the number of processes. One process needs no torchrun."""
    base = build_run(folder, "base", "classify", max_steps=1)
    train_alone([base], folder)
    runs = build_runs(folder)
    train_alone(runs, folder / "1")
    train_runs(2, runs, folder / "2")
    train_runs(4, [run for run in runs if run["name"] in RUNS_OF_FOUR], folder / "4")
    return {n_processes: folder / str(n_processes) for n_processes in (1, 2, 4)}


def train_alone(runs: list[dict[str, Any]], folder: Path) -> None:
    for run in runs:
        arguments = {key: value for key, value in run.items() if key not in ("name", "task")}
        triform.train(run["task"], out=str(folder / run["name"]), device="cpu", quiet=True, **arguments)


def read_losses(path: Path) -> list[float]:
    events = map(json.loads, (path / "metrics.jsonl").read_bytes().splitlines())
    return [event["loss"] for event in events if event["event"] in ("train", "valid")]


EXACT_RUNS = ("exact-classify", "exact-generate", "exact-translate", "r-drop")
OTHER_RUNS = ("ddp-classify", "ddp-generate", "ddp-translate", "recurrent", "frozen", "lora")


def build_cases(names: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, 2) for name in names] + [(name, 4) for name in names if name in RUNS_OF_FOUR]


@pytest.mark.parametrize(("name", "n_processes"), build_cases(EXACT_RUNS))
def test_exact_training_gives_the_same_bits(trained: dict[int, Path], name: str, n_processes: int) -> None:
    weights, expected = (load_file(trained[n] / name / "model.safetensors") for n in (n_processes, 1))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    assert read_losses(trained[n_processes] / name) == read_losses(trained[1] / name)


@pytest.mark.parametrize(("name", "n_processes"), build_cases(OTHER_RUNS))
def test_several_processes_differ_only_by_rounding(trained: dict[int, Path], name: str, n_processes: int) -> None:
    weights, expected = (load_file(trained[n] / name / "model.safetensors") for n in (n_processes, 1))
    assert weights.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(weights[key], expected[key], rtol=1e-3, atol=1e-5)
    losses = read_losses(trained[n_processes] / name)
    assert losses == pytest.approx(read_losses(trained[1] / name), rel=1e-4)
