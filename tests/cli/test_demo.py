"""The demo, with a few steps instead of minutes: the way is the same, the targets are not reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triform.cli import demo
from triform.data import builtin_sets


@pytest.fixture
def quick_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    load_pairs, load_text = builtin_sets.load_pairs, builtin_sets.load_text
    monkeypatch.setattr(builtin_sets, "load_pairs", lambda path: load_pairs(path)[:200])
    monkeypatch.setattr(builtin_sets, "load_text", lambda path: load_text(path)[:20_000])
    tiny = {"d_model": 16, "n_heads": 2, "n_layers": 1}
    quick = {"train": {"max_steps": 2, "batch_size": 4, "eval_every": 2}, "model": tiny}
    monkeypatch.setattr(demo, "SETTINGS", dict.fromkeys(demo.SETTINGS, quick))


@pytest.mark.usefixtures("quick_demo")
def test_the_demo_leaves_runs_a_page_and_an_honest_answer(triform, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = triform("demo", "--out", tmp_path / "demo", "--device", "cpu", "--json")
    summary = json.loads(result.out)
    assert result.code == 1  # nothing is learned in two steps, and the demo says so
    assert [task["task"] for task in summary["tasks"]] == ["classify", "generate", "translate"]
    assert not any(task["reached"] for task in summary["tasks"])
    page = Path(summary["report"]).read_text(encoding="utf-8")
    for task in summary["tasks"]:
        assert f"{task['task']}/report.html" in page
        run = tmp_path / "demo" / task["task"]
        assert triform("predict", run, "The soup was not bad.").code == 0
        report = (run / "report.html").read_text(encoding="utf-8")
        assert "Test metrics" in report
    second_result = triform("demo", "--out", tmp_path / "demo", "--device", "cpu")  # a demo may replace a demo
    assert second_result.code == 1
    assert "missed" in second_result.out
    assert second_result.out.endswith(f"  triform studio {tmp_path / 'demo'}\n")


@pytest.mark.usefixtures("quick_demo")
def test_the_demo_spares_a_run_of_the_users_own(triform, tmp_path: Path, classifier: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    shutil.copytree(classifier, tmp_path / "classify")
    refusal = triform("demo", "--out", tmp_path).refusal
    assert "contains a run that is not a demo" in refusal
