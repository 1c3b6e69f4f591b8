"""The commands and the Python of docs/vectors.md are run, the models small."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from triform.cli.main import main
from triform.data import sets

PAGE = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text(encoding="utf-8")
SHELL, PYTHON = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("sh", "python"))
QUICK = ["--set", "train.max_steps=2", "--set", "model.n_layers=1", "--device", "cpu", "--quiet"]


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = sets.pairs
    monkeypatch.setattr(sets, "pairs", lambda path: whole(path)[:300])
    for line in SHELL[0].splitlines():
        command = shlex.split(line.partition(" #")[0])
        quick = QUICK if command[1] == "train" else []
        monkeypatch.setattr(sys, "argv", [*command, *quick])
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, f"{line}\n{said.getvalue()}"
    assert (tmp_path / "map.png").exists()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(PYTHON[0], {})
    assert said.getvalue().splitlines()[-1] == "(32,)"
