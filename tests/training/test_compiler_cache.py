"""Compiled code is kept between runs, and shorter runs compile if it is there; a resumed run does as before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from triform import train
from triform.config import ModelConfig
from triform.io.cache import compiler_folder, use_compiler_cache
from triform.training import cuda_graph_step
from triform.training.compilation import should_compile
from triform.training.compiler_cache import block_marker, is_compiled, record_compiled
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.train_step import TrainStep

CPU = torch.device("cpu")
GPT2_SIZES = (124_000_000, 16_384)  # parameters, and positions of a step
MODEL = ModelConfig(d_model=16, n_heads=2)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    for name in ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FX_GRAPH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored after the test


def test_the_code_goes_into_the_cache_or_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert use_compiler_cache() == compiler_folder() == tmp_path / "cache" / "compiled"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(compiler_folder())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))
    assert use_compiler_cache() == tmp_path / "own"
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    assert use_compiler_cache() is None


def test_a_folder_that_cannot_be_written_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "file"))
    assert use_compiler_cache() is None
    record_compiled("triform-blocks-0")
    assert not is_compiled("triform-blocks-0")


def test_a_marker_says_what_was_compiled() -> None:
    marker = block_marker(MODEL, ((4, 16),), "bf16", CPU)
    assert not is_compiled(marker)
    record_compiled(marker)
    assert is_compiled(marker)
    assert block_marker(replace(MODEL, n_layers=5), ((4, 16), (4, 16)), "bf16", CPU) == marker
    others = [
        block_marker(replace(MODEL, d_model=32), ((4, 16),), "bf16", CPU),
        block_marker(replace(MODEL, dropout=0.3), ((4, 16),), "bf16", CPU),
        block_marker(MODEL, ((8, 16),), "bf16", CPU),
        block_marker(MODEL, ((4, 16),), "tf32", CPU),
    ]
    assert len({marker, *others}) == 5
    assert not any(map(is_compiled, others))


def test_shorter_runs_compile_if_the_code_is_there() -> None:
    def refuse_lookup() -> bool:
        raise AssertionError("the cache does not matter")

    assert should_compile(*GPT2_SIZES, 5_000, refuse_lookup)
    assert not should_compile(*GPT2_SIZES, 100, refuse_lookup)
    assert not should_compile(124_000_000, 512, 1_000_000, refuse_lookup)  # steps too small
    assert should_compile(*GPT2_SIZES, 1_000, lambda: True)
    assert not should_compile(*GPT2_SIZES, 1_000, lambda: False)


def decide(monkeypatch: pytest.MonkeyPatch, *, n_steps: int = 0, was_compiled: bool = False) -> bool:
    """Return whether a step of a middle-sized run compiles."""
    step: Any = CudaGraphTrainStep.__new__(CudaGraphTrainStep)
    step.task = SimpleNamespace(config=SimpleNamespace(model=MODEL), model=torch.nn.Linear(1, 1))
    step.compute_dtype, step.device, step.max_steps = "bf16", CPU, 1_000
    step.n_steps, step.was_compiled, step.graph_cache = n_steps, was_compiled, lambda *inputs: None
    plan = SimpleNamespace(shape=(4, 16), rows=torch.zeros(4).numpy())
    step.device_dataset = SimpleNamespace(plan=lambda indices: plan)
    stats = SimpleNamespace(n_positions=64, n_predictions=64)
    monkeypatch.setattr(cuda_graph_step, "collect_step_stats", lambda plans: stats)
    monkeypatch.setattr(cuda_graph_step, "should_compile", lambda *sizes: should_compile(*GPT2_SIZES, *sizes[2:]))
    step.step([[0]], 0.1)
    result: bool = step.use_compile
    return result


def test_a_resumed_run_continues_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not decide(monkeypatch)
    record_compiled(block_marker(MODEL, ((4, 16),), "bf16", CPU))
    assert decide(monkeypatch)
    assert not decide(monkeypatch, n_steps=500)  # it began before the code was there
    assert decide(monkeypatch, n_steps=500, was_compiled=True)


def test_a_checkpoint_says_whether_blocks_were_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40, encoding="utf-8")
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2}
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu", "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "use_compile", True)  # on a CPU, nothing is compiled
        run = train("generate", data=tmp_path / "text.txt", model=sizes, train={"max_steps": 1}, **options)
    assert run.progress()["compiled"] is True
    resumed = train("generate", resume=True, train={"max_steps": 2}, **options)
    assert resumed.progress()["step"] == 2
    assert resumed.progress()["compiled"] is True
