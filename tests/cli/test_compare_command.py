"""`triform compare`: a table and verdicts on the terminal, JSON for programs, one line when something is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

Command = Any
Files = Any

STUDY = """
task = "classify"
seeds = 2
[common]
data.train = "{data}"
model = {{ d_model = 8, n_layers = 1, n_heads = 2 }}
train = {{ max_steps = 4, batch_size = 8 }}
[variants.plain]
[variants.narrow]
model.window = 2
"""


@pytest.fixture
def study(tmp_path: Path, files: Files) -> Path:
    path = tmp_path / "windows.toml"
    path.write_text(STUDY.format(data=files.csv), encoding="utf-8")
    return path


def test_a_study_is_run_and_told(triform: Command, study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = triform("compare", study, "--out", out, "--device", "cpu")
    assert result.code == 0, result.err
    assert result.out.startswith("windows: classify, accuracy (higher is better), 2 variants × 2 seeds\n")
    assert re.search(r"^validation +narrow +2 +\d+\.\d+ % ", result.out, re.MULTILINE)
    assert re.search(r"^plain and narrow: ", result.out, re.MULTILINE)
    assert f"report: {out / 'study.html'}" in result.out
    assert "variant narrow, 2 of 2:" in result.err
    assert {file.name for file in out.glob("study.*")} == {"study.md", "study.csv", "study.json", "study.html"}
    assert triform("predict", out / "narrow" / "seed-1", "the soup was lovely").code == 0
    second_result = triform("compare", study, "--out", out, "--device", "cpu", "--json", "--quiet")
    assert second_result.err == ""
    assert json.loads(second_result.out)["pairs"][0]["first"] == "plain"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds", "sedes"), "unknown key 'sedes' in a study; did you mean 'seeds'?"),
        (("[variants.plain]", ""), "found one variant, narrow"),
        (("model.window", "model.windw"), "variants.narrow: unknown setting 'model.windw'"),
        (("= 2\n[common]", "=\n[common]"), "not valid TOML"),
    ],
)
def test_what_is_wrong_is_one_line(
    triform: Command, study: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    study.write_text(study.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    assert message in triform("compare", study, "--out", tmp_path / "out").refusal
    assert not (tmp_path / "out").exists()


def test_a_missing_study_and_no_seeds_are_refused(triform: Command, study: Path, tmp_path: Path) -> None:
    assert "no such file" in triform("compare", tmp_path / "gone.toml").refusal
    assert "--seeds 0: each variant needs at least 1 seed" in triform("compare", study, "--seeds", 0).refusal
