"""`triform evaluate --baselines`: beside a run's scores, what is reached without a Transformer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import triform as package
from conftest import Command, Files
from triform import baselines
from triform.config import DataConfig
from triform.data.readers import read_rows
from triform.text import load_tokenizer


def test_a_classifier_stands_beside_its_baselines(triform: Command, classifier: Path, files: Files) -> None:
    ask = ("evaluate", classifier, "--data", f"all={files.csv}", "--baselines")
    found = triform(*ask, "--json").json
    beside = found["baselines"]["all"]
    assert list(beside) == ["majority", "tfidf"]
    assert all(set(scores) == set(found["sets"]["all"]) for scores in beside.values())
    assert beside["majority"]["rows"] == found["sets"]["all"]["rows"] == 40
    assert beside["tfidf"]["accuracy"] == 1
    head, own, *others = triform(*ask).out.splitlines()
    assert head.split() == ["set", "loss", "accuracy", "f1", "rows"]
    assert [line.split()[0] for line in (own, *others)] == ["all", "majority", "tfidf"]
    assert "100.00 %" in others[1]
    assert "baselines" not in triform(*ask[:-1], "--json").json


def test_baselines_are_fitted_on_what_the_run_was_trained_on_and_judged_by_what_was_held_out(
    triform: Command, classifier: Path, files: Files
) -> None:
    task = package.load(classifier).task
    held = {row.line for row in task.rows()}
    rows = list(read_rows(str(files.csv), DataConfig()))
    kept, out = [row for row in rows if row.line not in held], [row for row in rows if row.line in held]
    found = triform("evaluate", classifier, "--baselines", "--json").json
    assert found["sets"]["valid"]["rows"] == len(out)
    for name, scores in baselines.scores("classify", kept, out).items():
        assert found["baselines"]["valid"][name] == pytest.approx(scores)


def test_an_ngram_model_predicts_the_very_tokens_that_the_run_predicts(
    triform: Command, writer: Path, files: Files
) -> None:
    ask = ("evaluate", writer, "--data", f"story={files.txt}", "--baselines")
    found = triform(*ask, "--json").json
    own, ngram = found["sets"]["story"], found["baselines"]["story"]["ngram"]
    text = files.txt.read_text()
    assert ngram["tokens"] == own["tokens"] == len(load_tokenizer(writer / "tokenizer.json").encode(text)) - 1
    assert ngram["bits_per_byte"] / ngram["loss"] == pytest.approx(own["bits_per_byte"] / own["loss"])
    assert ngram["loss"] < own["loss"]  # after four steps the run knows little
    head, first, _ = triform(*ask).out.splitlines()
    assert "order" in head
    assert first.split()[-1] == "-"  # the run has no order
    held = triform("evaluate", writer, "--baselines", "--json").json
    assert held["baselines"]["valid"]["ngram"]["tokens"] == held["sets"]["valid"]["tokens"] < own["tokens"]


def test_a_translator_stands_beside_a_copy_and_a_word_list(
    triform: Command, translator: Path, files: Files
) -> None:
    both = ("--source", files.source, "--target", files.target)
    found = triform("evaluate", translator, *both, "--baselines", "--json").json
    beside = found["baselines"]["a.en"]
    assert set(beside) == {"copy", "wordwise"}
    assert set(beside["copy"]) == set(found["sets"]["a.en"]) - {"loss", "token_accuracy"}
    assert beside["wordwise"]["exact_match"] == 1
    assert beside["wordwise"]["chrf"] > 99 > beside["copy"]["chrf"]


def test_training_data_that_are_gone_are_a_line_with_the_reason(
    train: Command, triform: Command, files: Files, tmp_path: Path
) -> None:
    moved, story, run = tmp_path / "moved.csv", tmp_path / "story.txt", tmp_path / "run"
    shutil.copy(files.csv, moved)
    assert train("classify", "--data", moved, "--out", run).code == 0
    moved.unlink()
    ask = ("evaluate", run, "--data", files.csv, "--baselines")
    beside = triform(*ask, "--json").json["baselines"]["rows.csv"]
    assert set(beside) == {"majority", "tfidf"}
    assert all("moved.csv" in scores["reason"] for scores in beside.values())
    _, own, *others = triform(*ask).out.splitlines()
    assert own.split()[-1] == "40"
    assert all("none: " in line and "moved.csv" in line for line in others)
    shutil.copy(files.txt, story)
    assert train("generate", "--data", story, "--set", "data.max_len=8", "--out", run, "--overwrite").code == 0
    story.unlink()
    found = triform("evaluate", run, "--data", files.txt, "--baselines", "--json").json
    assert "story.txt" in found["baselines"]["story.txt"]["ngram"]["reason"]


def test_a_run_opened_from_python_gives_the_same(classifier: Path, files: Files) -> None:
    run = package.load(classifier)
    table = run.baselines(files.csv)
    assert table["tfidf"]["rows"] == run.evaluate(files.csv)["rows"]
    assert not table.reasons
