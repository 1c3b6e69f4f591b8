"""The example of docs/sklearn.md is run, with little data and few steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from triform.data import builtin_sets

PAGE = (Path(__file__).parents[2] / "docs" / "sklearn.md").read_text(encoding="utf-8")


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_pairs = builtin_sets.load_pairs
    monkeypatch.setattr(builtin_sets, "load_pairs", lambda path: all_pairs(path)[:60])
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    exec("\n".join(blocks).replace("max_steps=600", "max_steps=2").replace("n_jobs=2", "n_jobs=1"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["['yes']", "bag", "classifier", "best", "pipeline", "the"]
    assert lines[-1] == "the same True"
