"""`triform search`: a table and a command on the terminal, JSON for programs, one line when something is wrong."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

Command = Files = Any

SPACE = """
task = "classify"
trials = 2
final_seeds = 1
[common]
data.train = "{data}"
model = {{ d_model = 8, n_layers = 1, n_heads = 2 }}
train = {{ max_steps = 2, batch_size = 8 }}
[space]
train.lr = [0.001, 0.01]
"""


@pytest.fixture
def space(tmp_path: Path, files: Files) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(SPACE.format(data=files.csv), encoding="utf-8")
    return path


def test_a_search_prints_its_trials_and_the_command_that_trains_the_best_setting(
    triform: Command, space: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = triform("search", space, "--out", out, "--device", "cpu")
    assert result.code == 0, result.err
    assert "2 settings tried (2 complete, 0 pruned, 0 failed); 0 settings refused without training" in result.out
    assert "rates-comparison: classify, accuracy (higher is better), 2 variants × 1 seed" in result.out
    assert "trial 0: " in result.err
    [command] = [line.removeprefix("train:  ") for line in result.out.splitlines() if line.startswith("train:")]
    assert triform(*shlex.split(command)[1:], "--device", "cpu", "--quiet").code == 0
    repeated = triform("search", space, "--out", out, "--device", "cpu", "--json", "--quiet")
    assert repeated.err == ""
    assert json.loads(repeated.out)["counts"]["tried"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--trials 0", "--trials 0 must be a number of settings from 1 to"),
        ("--seeds 0", "--seeds 0: each setting needs at least 1 seed"),
        ("--workers 0", "--workers 0 must be a number of processes from 1 to 256"),
        ("--workers 2 --storage redis://host", "--storage redis://host: unknown kind of storage"),
        ("--storage postgresql://ann:s3cret@127.0.0.1:1/db", "ann:***@127.0.0.1:1/db cannot be reached"),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    triform: Command, space: Path, tmp_path: Path, arguments: str, message: str
) -> None:
    refusal = triform("search", space, "--out", tmp_path / "out", *arguments.split()).refusal
    assert message in refusal
    assert "s3cret" not in refusal
    assert not (tmp_path / "out").exists()


def test_a_missing_space_and_a_number_of_workers_of_a_study_are_refused(
    triform: Command, space: Path, tmp_path: Path
) -> None:
    assert "gone.toml: no such file" in triform("search", tmp_path / "gone.toml").refusal
    assert "--workers 999 must be a number" in triform("compare", space, "--workers", 999).refusal


@pytest.mark.parametrize("command", ["search", "compare"])
def test_torchrun_is_refused(triform: Command, space: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert f"triform {command} does not use torchrun; start it without torchrun" in triform(command, space).refusal
