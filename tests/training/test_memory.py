"""When memory is short: what is said, and what is tried."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from triform.analysis.capacity import build_workload, find_max_batch_size, split_batch, training_flops_per_token
from triform.analysis.costs import estimate_costs
from triform.config import Config, DataSizes
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.launch import train
from triform.training import memory
from triform.training.freezing import freeze_parameters
from triform.training.train_step import StepStats, TrainStep

MODEL_SETTINGS = {"d_model": 16, "n_layers": 1, "n_heads": 2}
TRAIN_SETTINGS = {"max_steps": 6, "eval_every": 3, "checkpoint_every": 100, "log_every": 3, "batch_size": 8}
GPT2_SETTINGS = {
    "task": "generate",
    "data.max_len": 1024,
    "model.d_model": 768,
    "model.d_ff": 3072,
    "model.n_layers": 12,
    "model.n_heads": 12,
    "train.batch_size": 64,
}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.tsv"
    path.write_text(
        "".join(f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)),
        encoding="utf-8",
    )
    return str(path)


def limit_memory(monkeypatch: pytest.MonkeyPatch, max_batch: int) -> list[int]:
    """More than so many texts at once do not fit; the batches that were tried are remembered."""
    original_step, batch_sizes = TrainStep.step, []

    def limited_step(self: TrainStep, batches: Any, lr: float) -> StepStats:
        batch_sizes.append(max(map(len, batches)))
        if batch_sizes[-1] > max_batch:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original_step(self, batches, lr)

    monkeypatch.setattr(TrainStep, "step", limited_step)
    return batch_sizes


def test_a_run_of_adapters_keeps_gradients_of_what_learns_alone(rows: str, tmp_path: Path) -> None:
    run = train(
        "classify",
        data=rows,
        model=MODEL_SETTINGS,
        train=TRAIN_SETTINGS,
        out=str(tmp_path / "base"),
        device="cpu",
        quiet=True,
    )
    task, device, memory_bytes = run.task, torch.device("cuda"), 2 << 20
    full_batch = memory.max_batch_that_fits(task, device, memory_bytes)
    task = task.with_config(build_config({"train.init_from": "base", "train.lora_rank": 2}, task.config))
    freeze_parameters(task.model, task.config)
    assert memory.max_batch_that_fits(task, device, memory_bytes) > full_batch > 0


def test_the_batch_that_fits_is_the_largest_whose_costs_do() -> None:
    config, sizes = build_config(GPT2_SETTINGS, Config()), DataSizes(vocab_size=50_257, max_len=1024)
    usage = build_workload(config, 1024, bf16=True)
    max_batch = find_max_batch_size(config, sizes, usage, 80 * 2**30)
    from dataclasses import replace

    needed = [
        estimate_costs(config, sizes, replace(usage, batch_size=n)).training_bytes
        for n in (max_batch, max_batch + 1)
    ]
    assert needed[0] <= 0.8 * 80 * 2**30 < needed[1]
    assert find_max_batch_size(config, sizes, usage, 10**9) == 0


@pytest.mark.parametrize(("max_batch", "batch", "parts"), [(64, 64, 1), (63, 32, 2), (20, 16, 4), (1, 1, 64)])
def test_a_divided_step_learns_from_as_much(max_batch: int, batch: int, parts: int) -> None:
    assert split_batch(build_config(GPT2_SETTINGS, Config()), max_batch) == {
        "train.batch_size": batch,
        "train.grad_accumulation": parts,
    }


@pytest.mark.parametrize(("batch_size", "max_batch"), [(127, 100), (127, 3), (97, 96), (13, 5), (7, 2)])
def test_a_batch_that_cannot_be_halved_is_cut_into_few_parts(batch_size: int, max_batch: int) -> None:
    settings = split_batch(build_config(GPT2_SETTINGS | {"train.batch_size": batch_size}, Config()), max_batch)
    size, parts = settings["train.batch_size"], settings["train.grad_accumulation"]
    assert size <= max_batch
    assert parts < 2 * -(-batch_size // max_batch)
    assert batch_size <= size * parts < batch_size + parts


def test_work_a_token_is_what_is_known_of_gpt2() -> None:
    """6 operations for each weight in a product, and attention over half of 1,024 keys."""
    flops = training_flops_per_token(
        build_config(GPT2_SETTINGS, Config()), DataSizes(vocab_size=50_257, max_len=1024), 1024
    )
    weights = 12 * 12 * 768**2 + 50_257 * 768
    assert flops == pytest.approx(6 * weights + 12 * 12 * 768 * 1025 / 2, rel=1e-6)


def test_out_of_memory_names_a_batch_that_fits_and_the_way_out(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, max_batch=2)
    monkeypatch.setattr(memory, "max_batch_that_fits", lambda *args: 3)
    with pytest.raises(ConfigError) as caught:
        train(
            "classify",
            data=rows,
            out=tmp_path / "run",
            device="cpu",
            quiet=True,
            model=MODEL_SETTINGS,
            train=TRAIN_SETTINGS,
        )
    message = str(caught.value)
    assert "out of memory on cpu with train.batch_size=8: about 3 texts at once fit" in message
    assert "train.batch_size=2, train.grad_accumulation=4" in message
    assert "--set train.auto_batch=true" in message


def test_where_nothing_fits_the_model_is_too_large(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, max_batch=0)
    with pytest.raises(ConfigError, match=r"even one text .* does not fit"):
        train(
            "classify", data=rows, out=tmp_path / "run", device="cpu", quiet=True, model=MODEL_SETTINGS,
            train=TRAIN_SETTINGS | {"batch_size": 1, "auto_batch": True},
        )  # fmt: skip


def test_with_auto_batch_a_run_goes_on_in_smaller_batches(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_sizes = limit_memory(monkeypatch, max_batch=3)
    out = io.StringIO()
    run = train(
        "classify", data=rows, out=tmp_path / "run", device="cpu", progress=out, model=MODEL_SETTINGS,
        train=TRAIN_SETTINGS | {"auto_batch": True},
    )  # fmt: skip
    assert (run.config.train.batch_size, run.config.train.grad_accumulation) == (2, 4)
    assert batch_sizes[:3] == [8, 4, 2]
    events = [json.loads(line) for line in (run.path / "metrics.jsonl").read_bytes().splitlines()]
    assert [event["step"] for event in events if event["event"] == "end"] == [6]
    assert "6 steps" in out.getvalue()
    assert "to fit the memory of the device: train.batch_size=2, train.grad_accumulation=4\n" in out.getvalue()


def test_without_auto_batch_nothing_is_divided(rows: str, tmp_path: Path) -> None:
    run = train(
        "classify",
        data=rows,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
        model=MODEL_SETTINGS,
        train=TRAIN_SETTINGS,
    )
    assert (run.config.train.batch_size, run.config.train.grad_accumulation) == (8, 1)
