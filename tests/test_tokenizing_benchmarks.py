"""The benchmarks of tokenizing, of growth and of audits run; what they measure is not a test's affair."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import growth
from benchmarks.__main__ import main

from warm_processes import run_python


def run_benchmark(name: str, folder: Path) -> dict[str, Any]:
    assert main([name, "--smoke", "--json", str(folder / "f.json")]) == 0
    content: dict[str, Any] = json.loads((folder / "f.json").read_text(encoding="utf-8"))
    return content


def test_the_tokenizing_benchmark_runs_and_all_give_the_same_ids(tmp_path: Path) -> None:
    figures = run_benchmark("tokenize_text", tmp_path)
    assert figures["same_ids"]
    assert {"triform", "tokenizers encode_batch"} <= {row["who"] for row in figures["rows"]}


def test_the_growth_benchmark_prepares_each_size_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = partial(run_python, log_file=tmp_path / "log.txt")
    monkeypatch.setattr(growth, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    rows = run_benchmark("growth", tmp_path)["rows"]
    assert [row["cache"] for row in rows] == ["empty", "full"] * 2
    assert rows[2]["tokens"] == rows[3]["tokens"] > rows[0]["tokens"] > 0


def test_the_audit_benchmark_finds_what_it_planted(tmp_path: Path) -> None:
    planted, repeated = run_benchmark("audit", tmp_path)["rows"]
    assert planted["near"] == planted["planted"] == 100
    assert repeated["seen"] == 10
