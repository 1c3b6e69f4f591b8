"""`distill`: one model from another, for each task, used like any other run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

Command = Any  # `triform(...)` of conftest: it gives a CommandResult


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_student_of_each_task_is_a_run_like_any_other(
    name: str, triform: Command, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    teacher, student = request.getfixturevalue(name), tmp_path / "student"
    options = (
        "--out",
        student,
        "--max-steps",
        2,
        "--set",
        "train.distill_weight=0.9",
        "--device",
        "cpu",
        "--quiet",
    )
    answer = triform("distill", f"{teacher},{teacher}", *options, "--json").json
    assert answer["run"] == str(student)
    assert answer["step"] == 2
    assert f'distill_from = "{teacher},{teacher}"' in (student / "config.toml").read_text()
    assert triform("evaluate", student).code == 0
    assert triform("distill", teacher, *options).refusal.startswith(f"{student} already contains a finished run")


def test_bad_input_is_refused_with_one_line(triform: Command, classifier: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "student")
    assert triform("distill", tmp_path / "none", *out).refusal == f"{tmp_path / 'none'}: no such run folder"
    refusal = triform("distill", classifier, *out, "--set", "train.distill_weight=2").refusal
    assert "train.distill_weight" in refusal
    assert "cannot learn from itself" in triform("distill", classifier, "--out", classifier, "--overwrite").refusal
