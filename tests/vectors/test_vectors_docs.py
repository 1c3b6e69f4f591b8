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
from triform.data import builtin_sets

PAGE = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text(encoding="utf-8")
SHELL, PYTHON = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("sh", "python"))
QUICK_OPTIONS = ["--set", "train.max_steps=2", "--set", "model.n_layers=1", "--device", "cpu", "--quiet"]


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    all_pairs = builtin_sets.load_pairs
    monkeypatch.setattr(builtin_sets, "load_pairs", lambda path: all_pairs(path)[:300])
    for line in SHELL[0].splitlines():
        command = shlex.split(line.partition(" #")[0])
        options = QUICK_OPTIONS if command[1] == "train" else []
        monkeypatch.setattr(sys, "argv", [*command, *options])
        output = io.StringIO()
        with (
            contextlib.redirect_stderr(output),
            contextlib.redirect_stdout(output),
            pytest.raises(SystemExit) as exit_info,
        ):
            main()
        assert exit_info.value.code == 0, f"{line}\n{output.getvalue()}"
    assert (tmp_path / "map.png").exists()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(PYTHON[0], {})
    assert output.getvalue().splitlines()[-1] == "(32,)"
