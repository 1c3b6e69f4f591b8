"""A run is compared with the baseline of its task after training, and nothing of its training changes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import triform
from triform import launch
from triform.data.readers import LabelledText
from triform.launch import RunOptions
from triform.tasks.baseline import load_task_data, measure_baseline, sample_rows
from triform.tasks.classify import Classify
from triform.training import baseline_job
from triform.training.baseline_job import BackgroundBaselineJob, start_baseline_job

TINY: dict[str, Any] = {"model": {"d_model": 16, "n_layers": 1, "n_heads": 2}, "device": "cpu"}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty short texts, whose label is known from one word."""
    rows = [
        f"{'good' if n % 2 else 'bad'} {('soup', 'bread', 'day')[n % 3]} {n},{'yes' if n % 2 else 'no'}"
        for n in range(40)
    ]
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    path.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def read_events(run: triform.Run, name: str) -> list[dict[str, Any]]:
    lines = (run.path / "metrics.jsonl").read_bytes().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_a_run_says_how_it_compares_with_its_baseline(reviews: Path, tmp_path: Path) -> None:
    progress = io.StringIO()
    settings: dict[str, Any] = {"data": str(reviews), "train": {"max_steps": 4, "lr": 1e-9}, **TINY}
    run = triform.train("classify", out=tmp_path / "run", progress=progress, **settings)
    (event,) = read_events(run, "baseline")
    assert event["baseline"] == 1.0
    assert event["verdict"] == "worse"
    assert event["n_train"] == 36
    assert event["n_valid"] == 4
    assert event["value"] == read_events(run, "end")[0]["best"]
    sentence = "is worse than the 100.00 % of TF-IDF logistic regression on words, on 4 validation texts"
    assert sentence in progress.getvalue()
    assert "suggestion: 36 texts are few" in progress.getvalue()
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert sentence in report
    assert all(suggestion.split(":")[0] in report for suggestion in event["suggestions"])

    plain = triform.train(
        "classify", out=tmp_path / "plain", progress=progress, **{**settings, "train.baseline": False}
    )
    assert not read_events(plain, "baseline")
    assert [event["loss"] for event in read_events(plain, "train")] == [
        event["loss"] for event in read_events(run, "train")
    ]


@pytest.mark.parametrize(
    ("options", "train"), [({"quiet": True}, {"max_steps": 4}), ({}, {"max_steps": 1, "batch_size": 2})]
)
def test_quiet_and_very_short_runs_are_not_compared(
    reviews: Path, tmp_path: Path, options: dict[str, Any], train: dict[str, Any]
) -> None:
    run = triform.train(
        "classify", out=tmp_path, data=str(reviews), train=train, progress=io.StringIO(), **options, **TINY
    )
    assert not read_events(run, "baseline")


def test_data_without_a_baseline_gives_the_reason(tmp_path: Path) -> None:
    data = tmp_path / "marks.csv"
    data.write_text(
        "text,label\n" + "".join(f"{'?' * n} !,{'ab'[n % 2]}\n" for n in range(1, 21)), encoding="utf-8"
    )
    progress = io.StringIO()
    run = triform.train(
        "classify", out=tmp_path / "run", data=str(data), train={"max_steps": 4}, progress=progress, **TINY
    )
    assert read_events(run, "baseline") == [{"event": "baseline", "reason": "the training texts contain no words"}]
    assert "no baseline: the training texts contain no words" in progress.getvalue()
    assert "No baseline" in (run.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_text_and_translation_have_a_baseline(task: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    if task == "generate":
        data = tmp_path / "data.txt"
        data.write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    else:
        words = {"red": "rouge", "house": "maison", "day": "jour"}
        sentences = [[*"aabbcc"[n:], *"abccba"[: n + 2]] for n in range(4)]
        translations = dict(zip("abc", words.items(), strict=True))
        rows = [[translations[letter] for letter in sentence] for sentence in sentences] * 8
        pairs = [(" ".join(source for source, _ in row), " ".join(target for _, target in row)) for row in rows]
        data.write_text("source\ttarget\n" + "".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    settings = {"train.max_steps": 12, "train.lr": 1e-9, "data.max_len": 16, "data": str(data)}
    run = triform.train(task, out=tmp_path / "run", progress=io.StringIO(), **settings, **TINY)
    (event,) = read_events(run, "baseline")
    assert event["verdict"] == "worse"
    expected = run.baselines()["ngram" if task == "generate" else "wordwise"]
    assert event["baseline"] == pytest.approx(expected["perplexity" if task == "generate" else "bleu"])
    assert event["n_valid"] == expected["tokens" if task == "generate" else "pairs"]
    if task == "generate":
        assert event["mixed"] == pytest.approx(run.evaluate(mix=["ngram"])["perplexity"])
    else:
        assert "mixed" not in event


def test_another_process_finds_the_same_baseline(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = launch.resolve_settings("classify", "", None, {"data.train": str(reviews), "train.max_steps": 4})
    monkeypatch.setattr(baseline_job, "MAX_WORK_AFTER_TRAINING", 0)
    folder = launch.RunFolder(tmp_path)
    trainer, _ = launch.build_trainer(
        launch.build_config(settings), folder, RunOptions(quiet=True, device="cpu"), resume=False
    )
    with start_baseline_job(trainer, enabled=True) as job:
        assert isinstance(job, BackgroundBaselineJob)
        result = job.result(max_wait_seconds=None)
    assert job.process.returncode is not None
    data = load_task_data(trainer.task.config, tmp_path, Classify.data_class)
    assert result == measure_baseline(data, 4)


def test_another_process_finds_the_same_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.txt"
    data.write_text("".join(f"{n * n} is the square of {n}. " for n in range(400)), encoding="utf-8")
    settings: dict[str, Any] = {"data": str(data), "train": {"max_steps": 100}, "data.max_len": 16, **TINY}
    events = []
    for name in ("small", "large"):
        run = triform.train("generate", out=tmp_path / name, progress=io.StringIO(), **settings)
        events += read_events(run, "baseline")
        monkeypatch.setattr(baseline_job, "MAX_WORK_AFTER_TRAINING", 0)
        monkeypatch.setattr(BackgroundBaselineJob.result, "__defaults__", (None,))
    small, large = ({key: event[key] for key in ("baseline", "mixed", "n_valid", "value")} for event in events)
    assert small == large
    assert small["mixed"] < small["value"]


def test_a_process_that_is_not_ready_is_stopped(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_job, "MAX_WORK_AFTER_TRAINING", 0)
    monkeypatch.setattr(
        baseline_job, "_PROCESS_CODE", "import sys; sys.stdin.read(); {path}, {folder!r}, {n_valid}"
    )
    monkeypatch.setattr(BackgroundBaselineJob.result, "__defaults__", (0.0,))
    progress = io.StringIO()
    settings: dict[str, Any] = {"data": str(reviews), "train": {"max_steps": 4}, **TINY}
    triform.train("classify", out=tmp_path / "run", progress=progress, **settings)
    assert f"not ready when training ended; triform evaluate {tmp_path / 'run'} --baselines" in progress.getvalue()


def test_a_sample_of_rows_is_evenly_spaced() -> None:
    rows = [LabelledText("12345", str(n), n) for n in range(100)]
    assert sample_rows(iter(rows), 1000) == (rows, 1)
    sample, stride = sample_rows(iter(rows), 100)
    assert sample == rows[::8]
    assert stride == 8
