"""`triform evaluate --baselines`: beside a run's scores, what is reached without a Transformer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import triform as package
from triform.config import DataConfig
from triform.data.readers import read_rows
from triform.evaluation import baselines
from triform.text import load_tokenizer

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any  # small data of each kind


def test_a_classifier_stands_beside_its_baselines(triform: Command, classifier: Path, files: Files) -> None:
    arguments = ("evaluate", classifier, "--data", f"all={files.csv}", "--baselines")
    report = triform(*arguments, "--json").json
    baselines = report["baselines"]["all"]
    assert list(baselines) == ["majority", "tfidf"]
    assert all(set(metrics) == set(report["sets"]["all"]) for metrics in baselines.values())
    assert baselines["majority"]["rows"] == report["sets"]["all"]["rows"] == 40
    assert baselines["tfidf"]["accuracy"] == 1
    header, model_line, *baseline_lines = triform(*arguments).out.splitlines()
    assert header.split() == ["set", "loss", "accuracy", "f1", "rows"]
    assert [line.split()[0] for line in (model_line, *baseline_lines)] == ["all", "majority", "tfidf"]
    assert "100.00 %" in baseline_lines[1]
    assert "baselines" not in triform(*arguments[:-1], "--json").json


def test_baselines_are_fitted_on_what_the_run_was_trained_on_and_judged_by_what_was_held_out(
    triform: Command, classifier: Path, files: Files
) -> None:
    task = package.load(classifier).task
    valid_lines = {row.line for row in task.data.iter_examples()}
    rows = list(read_rows(str(files.csv), DataConfig()))
    train_rows, valid_rows = (
        [row for row in rows if row.line not in valid_lines],
        [row for row in rows if row.line in valid_lines],
    )
    report = triform("evaluate", classifier, "--baselines", "--json").json
    assert report["sets"]["valid"]["rows"] == len(valid_rows)
    for name, metrics in baselines.evaluate_baselines("classify", train_rows, valid_rows).items():
        assert report["baselines"]["valid"][name] == pytest.approx(metrics)


def test_an_ngram_model_predicts_the_very_tokens_that_the_run_predicts(
    triform: Command, writer: Path, files: Files
) -> None:
    arguments = ("evaluate", writer, "--data", f"story={files.txt}", "--baselines")
    report = triform(*arguments, "--json").json
    model_metrics, ngram_metrics = report["sets"]["story"], report["baselines"]["story"]["ngram"]
    text = files.txt.read_text()
    assert (
        ngram_metrics["tokens"]
        == model_metrics["tokens"]
        == len(load_tokenizer(writer / "tokenizer.json").encode(text)) - 1
    )
    assert ngram_metrics["bits_per_byte"] / ngram_metrics["loss"] == pytest.approx(
        model_metrics["bits_per_byte"] / model_metrics["loss"]
    )
    assert ngram_metrics["loss"] < model_metrics["loss"]  # after four steps the run knows little
    head, first, _ = triform(*arguments).out.splitlines()
    assert "order" in head
    assert first.split()[-1] == "-"  # the run has no order
    valid_report = triform("evaluate", writer, "--baselines", "--json").json
    assert (
        valid_report["baselines"]["valid"]["ngram"]["tokens"]
        == valid_report["sets"]["valid"]["tokens"]
        < model_metrics["tokens"]
    )


def test_a_translator_stands_beside_a_copy_and_a_word_list(
    triform: Command, translator: Path, files: Files
) -> None:
    both = ("--source", files.source, "--target", files.target)
    report = triform("evaluate", translator, *both, "--baselines", "--json").json
    baselines = report["baselines"]["a.en"]
    assert set(baselines) == {"copy", "wordwise"}
    losses_and_accuracies = {"loss", "token_accuracy", "token_accuracy_with_padding"}
    assert set(baselines["copy"]) == set(report["sets"]["a.en"]) - losses_and_accuracies
    assert baselines["wordwise"]["exact_match"] == 1
    assert baselines["wordwise"]["chrf"] > 99 > baselines["copy"]["chrf"]


def test_training_data_that_are_gone_are_a_line_with_the_reason(
    train: Command, triform: Command, files: Files, tmp_path: Path
) -> None:
    moved, story, run = tmp_path / "moved.csv", tmp_path / "story.txt", tmp_path / "run"
    shutil.copy(files.csv, moved)
    assert train("classify", "--data", moved, "--out", run).code == 0
    moved.unlink()
    arguments = ("evaluate", run, "--data", files.csv, "--baselines")
    baselines = triform(*arguments, "--json").json["baselines"]["rows.csv"]
    assert set(baselines) == {"majority", "tfidf"}
    assert all("moved.csv" in metrics["reason"] for metrics in baselines.values())
    _, model_line, *baseline_lines = triform(*arguments).out.splitlines()
    assert model_line.split()[-1] == "40"
    assert all("not available: " in line and "moved.csv" in line for line in baseline_lines)
    shutil.copy(files.txt, story)
    assert train("generate", "--data", story, "--set", "data.max_len=8", "--out", run, "--overwrite").code == 0
    story.unlink()
    report = triform("evaluate", run, "--data", files.txt, "--baselines", "--json").json
    assert "story.txt" in report["baselines"]["story.txt"]["ngram"]["reason"]


@pytest.mark.parametrize(("task", "name"), [("classify", "csv"), ("generate", "txt")])
def test_a_run_that_held_nothing_out_judges_its_baselines_by_nothing(
    train: Command, files: Files, tmp_path: Path, task: str, name: str
) -> None:
    options = ("--set", "data.valid_fraction=0", "--set", "data.max_len=8")
    assert train(task, "--data", getattr(files, name), *options, "--out", tmp_path / "run").code == 0
    table = package.load(tmp_path / "run").baselines()
    assert set(table.reasons) == set(table)


def test_a_run_opened_from_python_gives_the_same(classifier: Path, files: Files) -> None:
    run = package.load(classifier)
    table = run.baselines(files.csv)
    assert table["tfidf"]["rows"] == run.evaluate(files.csv)["rows"]
    assert not table.reasons
