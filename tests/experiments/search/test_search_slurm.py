"""The example for Slurm runs with the executor of submitit that starts jobs on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "search.md"


def test_the_jobs_of_the_documented_example_share_a_search(
    workdir: Path, write_space: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    write_space(("trials = 4", "trials = 4\nseeds = 1"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    exec(compile(example, str(PAGE), "exec"), {})
    result = json.loads((workdir / "runs" / "slurm-search" / "search.json").read_text(encoding="utf-8"))
    assert result["counts"]["complete"] == result["counts"]["tried"] == len(result["trials"]) == 4
