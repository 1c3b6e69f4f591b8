"""When memory is short: what is said, and what is tried."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from triform import memory
from triform.config import Config, Sizes
from triform.errors import ConfigError
from triform.explain.capacity import fitting_batch, operations_a_token, smaller_batches, use_of
from triform.explain.costs import costs
from triform.launch import train
from triform.settings import build
from triform.training.layers import limit_learning
from triform.training.learner import Counts, Learner

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2}
PACE = {"max_steps": 6, "eval_every": 3, "checkpoint_every": 100, "log_every": 3, "batch_size": 8}
GPT = {
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


def short_of_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """More than so many texts at once do not fit; the batches that were tried are remembered."""
    step, tried = Learner.step, []

    def limited(self: Learner, drawn: Any, rate: float) -> Counts:
        tried.append(max(map(len, drawn)))
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, drawn, rate)

    monkeypatch.setattr(Learner, "step", limited)
    return tried


def test_a_run_of_adapters_keeps_gradients_of_what_learns_alone(rows: str, tmp_path: Path) -> None:
    base = train(
        "classify", data=rows, model=MODEL, train=PACE, out=str(tmp_path / "base"), device="cpu", quiet=True
    )
    task, device, room = base.task, torch.device("cuda"), 2 << 20
    whole = memory.fitting(task, device, room)
    task.config = build({"train.base": "base", "train.lora_rank": 2}, task.config)
    limit_learning(task.model, task.config)
    assert memory.fitting(task, device, room) > whole > 0


def test_the_batch_that_fits_is_the_largest_whose_costs_do() -> None:
    config, sizes = build(GPT, Config()), Sizes(vocab_size=50_257, max_len=1024)
    use = use_of(config, 1024, half=True)
    most = fitting_batch(config, sizes, use, 80 * 2**30)
    from dataclasses import replace

    needed = [costs(config, sizes, replace(use, batch_size=n)).training_bytes for n in (most, most + 1)]
    assert needed[0] <= 0.8 * 80 * 2**30 < needed[1]
    assert fitting_batch(config, sizes, use, 10**9) == 0


@pytest.mark.parametrize(("most", "batch", "parts"), [(64, 64, 1), (63, 32, 2), (20, 16, 4), (1, 1, 64)])
def test_a_divided_step_learns_from_as_much(most: int, batch: int, parts: int) -> None:
    assert smaller_batches(build(GPT, Config()), most) == {"train.batch_size": batch, "train.accumulate": parts}


@pytest.mark.parametrize(("batch_size", "most"), [(127, 100), (127, 3), (97, 96), (13, 5), (7, 2)])
def test_a_batch_that_cannot_be_halved_is_cut_into_few_parts(batch_size: int, most: int) -> None:
    found = smaller_batches(build(GPT | {"train.batch_size": batch_size}, Config()), most)
    size, parts = found["train.batch_size"], found["train.accumulate"]
    assert size <= most
    assert parts < 2 * -(-batch_size // most)
    assert batch_size <= size * parts < batch_size + parts


def test_work_a_token_is_what_is_known_of_gpt2() -> None:
    """6 operations for each weight in a product, and attention over half of 1,024 keys."""
    found = operations_a_token(build(GPT, Config()), Sizes(vocab_size=50_257, max_len=1024), 1024)
    weights = 12 * 12 * 768**2 + 50_257 * 768
    assert found == pytest.approx(6 * weights + 12 * 12 * 768 * 1025 / 2, rel=1e-6)


def test_out_of_memory_names_a_batch_that_fits_and_the_way_out(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_of_memory(monkeypatch, most=2)
    monkeypatch.setattr(memory, "fitting", lambda *args: 3)
    with pytest.raises(ConfigError) as caught:
        train("classify", data=rows, out=tmp_path / "run", device="cpu", quiet=True, model=MODEL, train=PACE)
    said = str(caught.value)
    assert "out of memory on cpu with train.batch_size=8: about 3 texts at once fit" in said
    assert "train.batch_size=2, train.accumulate=4" in said
    assert "--set train.auto_batch=true" in said


def test_where_nothing_fits_the_model_is_too_large(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_of_memory(monkeypatch, most=0)
    with pytest.raises(ConfigError, match=r"even one text .* does not fit"):
        train(
            "classify", data=rows, out=tmp_path / "run", device="cpu", quiet=True, model=MODEL,
            train=PACE | {"batch_size": 1, "auto_batch": True},
        )  # fmt: skip


def test_with_auto_batch_a_run_goes_on_in_smaller_batches(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = short_of_memory(monkeypatch, most=3)
    out = io.StringIO()
    run = train(
        "classify", data=rows, out=tmp_path / "run", device="cpu", progress=out, model=MODEL,
        train=PACE | {"auto_batch": True},
    )  # fmt: skip
    assert (run.config.train.batch_size, run.config.train.accumulate) == (2, 4)
    assert tried[:3] == [8, 4, 2]
    events = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "end"] == [6]
    assert "6 steps" in out.getvalue()
    assert "to fit the memory of the device: train.batch_size=2, train.accumulate=4\n" in out.getvalue()


def test_without_auto_batch_nothing_is_divided(rows: str, tmp_path: Path) -> None:
    run = train("classify", data=rows, out=tmp_path / "run", device="cpu", quiet=True, model=MODEL, train=PACE)
    assert (run.config.train.batch_size, run.config.train.accumulate) == (8, 1)
