"""The benchmarks of tokenizing, of growth and of audits run; what they measure is not a test's affair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_benchmark(name: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--json", str(folder / "f.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    content: dict[str, Any] = json.loads((folder / "f.json").read_text(encoding="utf-8"))
    return content


def test_the_tokenizing_benchmark_runs_and_all_give_the_same_ids(tmp_path: Path) -> None:
    figures = run_benchmark("tokenize_text", tmp_path)
    assert figures["same_ids"]
    assert {"triform", "tokenizers encode_batch"} <= {row["who"] for row in figures["rows"]}


def test_the_growth_benchmark_prepares_each_size_twice(tmp_path: Path) -> None:
    rows = run_benchmark("growth", tmp_path)["rows"]
    assert [row["cache"] for row in rows] == ["empty", "full"] * 2
    assert rows[2]["tokens"] == rows[3]["tokens"] > rows[0]["tokens"] > 0


def test_the_audit_benchmark_finds_what_it_planted(tmp_path: Path) -> None:
    planted, repeated = run_benchmark("audit", tmp_path)["rows"]
    assert planted["near"] == planted["planted"] == 100
    assert repeated["seen"] == 10
