"""A variant of a reference system with `dynamic = true` is evaluated while its model learns from the test file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.dynamic import DynamicEvaluation
from reproduce.evaluation import evaluate_dynamically

import triform


def test_a_dynamic_variant_is_mixed_as_its_settings_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lines = [" ".join(rng.choice(["the", "cat", "sat", "on", "mats"], 6)) + " and ran" for _ in range(80)]
    (tmp_path / "train.txt").write_text("\n".join(lines[:60]), encoding="utf-8")
    (tmp_path / "test.txt").write_text("\n".join(lines[60:]), encoding="utf-8")
    options: dict[str, Any] = {
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0},
        "tokenizer": {"kind": "word"},
        "data": {"train": str(tmp_path / "train.txt"), "max_len": 8, "valid_fraction": 0.3},
    }
    run = triform.train(
        "generate", out=tmp_path / "run", train={"max_steps": 5}, device="cpu", quiet=True, **options
    )
    file = str(tmp_path / "test.txt")
    dynamic = evaluate_dynamically(run, file)
    assert dynamic == DynamicEvaluation(run.task).evaluate(file).metrics
    assert dynamic["loss"] != run.evaluate(file)["loss"]
    decode = replace(run.config.decode, mix=("ngram",))
    mixed_run = replace(run, task=run.task.with_config(replace(run.config, decode=decode)))
    mixed = evaluate_dynamically(mixed_run, file)
    assert mixed["loss"] < dynamic["loss"]
    assert mixed["loss"] != pytest.approx(mixed_run.evaluate(file)["loss"], rel=1e-6)
    assert mixed["tokens"] == dynamic["tokens"]
