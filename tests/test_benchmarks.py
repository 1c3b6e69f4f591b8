"""The benchmarks run; what they measure is not a test's affair."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_attention_benchmark_runs_and_writes_its_figures(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "benchmarks.attention", "--quick", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*arguments, "--json", str(tmp_path / "f.json")], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert {"triform", "torch, full causal", "padded"} <= {row["who"] for row in rows}
    assert all(row["median"] > 0 for row in rows if "median" in row)


def test_the_populations_benchmark_runs_and_writes_its_figures(tmp_path: Path) -> None:
    from benchmarks.populations import main

    main(["--quick", "--device", "cpu", "--json", str(tmp_path / "f.json")])
    rows = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rows"]
    assert [row["seeds"] for row in rows] == [1, 3]
    assert all(row["model_steps_per_s"] > 0 for row in rows)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_documents_have_no_place_left_to_be_filled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$|TODO|FIXME", text, re.MULTILINE)
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (page.parent / image).exists(), image
