"""The commands of docs/predict.md are run, and its table names the columns that are written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from triform.cli.prediction_file import PREDICTION_COLUMNS

Command = Any  # `triform(...)` of conftest: it gives an Answer
PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text(encoding="utf-8")


def test_the_commands_run(
    triform: Command, classifier: Path, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(classifier, "runs/reviews")
    shutil.copytree(writer, "runs/book")
    Path("new.csv").write_text("id,text,comment\n1,the soup was lovely,none\n")
    Path("lines.txt").write_text("the room was awful\n")
    commands = re.findall(r"^triform (.+)$", PAGE, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        known = command.replace("Once upon", "3 birds")  # letters that the small model has seen
        result = triform(*shlex.split(known, comments=True))
        assert result.code == 0, f"{command}\n{result.err}"
    assert Path("answers.csv").read_text().startswith("id,text,comment,predicted_label,probability_bad,")
    assert '"probabilities": {' in Path("answers.jsonl").read_text()


def test_the_table_names_every_column_that_is_added() -> None:
    assert all(f"| `{name}` | {task} |" in PAGE for task, name in PREDICTION_COLUMNS.items())
