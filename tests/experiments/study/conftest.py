"""Small data, and studies of models so small that each takes a moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triform.experiments.study.results import StudyResult
from triform.experiments.study.runner import compare

StudySpec = dict[str, Any]
MODEL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "dropout": 0.0}
TRAIN = {"max_steps": 6, "eval_every": 3, "batch_size": 8, "lr": 0.01, "warmup_steps": 1, "log_every": 2}
WORDS = ("amber", "birch", "cedar", "dune", "ember")


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of each kind, which is also the working folder."""
    texts = [" ".join(WORDS[(n * k) % 5] for k in range(1, 3 + n % 6)) for n in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "other.txt").write_text("\n".join(texts[:20]), encoding="utf-8")
    rows = [f"{text}\t{'long' if len(text) > 25 else 'short'}\n" for text in texts]
    (tmp_path / "rows.tsv").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "more.tsv").write_text("".join(rows[:15]), encoding="utf-8")
    (tmp_path / "a.en").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (tmp_path / "a.fr").write_text("".join(f"{text.upper()}\n" for text in texts), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spec() -> StudySpec:
    """Two variants of a classifier, as a study's file would hold them."""
    return {
        "name": "try",
        "task": "classify",
        "seeds": 3,
        "common": {"data.train": "rows.tsv", "tokenizer.kind": "word", "model": dict(MODEL), "train": dict(TRAIN)},
        "variants": {"plain": {}, "narrow": {"model.window": 2}},
    }


@pytest.fixture
def run_study() -> Callable[..., StudyResult]:
    """`study(tree, seeds=2)`: trained on the CPU, in silence."""

    def run(spec: StudySpec | str, **options: Any) -> StudyResult:
        return compare(spec, **{"device": "cpu", "quiet": True, **options})

    return run
