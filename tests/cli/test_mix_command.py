"""`triform evaluate --mix`: a language model and its mixture with counts, side by side."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

Command = Any  # `triform(...)` of conftest
Files = Any  # small data of each kind


def test_a_mixture_is_a_row_below_the_model(triform: Command, writer: Path, files: Files) -> None:
    arguments = ("evaluate", writer, "--data", f"story={files.txt}", "--mix", "ngram,cache")
    report = triform(*arguments, "--json").json
    mixture = report["mixtures"]["story"]
    assert mixture["tokens"] == report["sets"]["story"]["tokens"]
    assert mixture["loss"] < report["sets"]["story"]["loss"]
    assert mixture["name"] == " + ".join(mixture["components"])
    assert sum(mixture["weights"]) == pytest.approx(1)
    lines = triform(*arguments).out.splitlines()
    assert lines[1].startswith("story ")
    assert lines[2].startswith(f"  {mixture['name']} ")
    assert lines[3].startswith(f"mean weights of {mixture['name']}, learned on validation data: model 0.")


def test_a_mixture_that_cannot_be_made_is_refused_in_one_line(
    triform: Command, classifier: Path, writer: Path, tmp_path: Path
) -> None:
    refusal = triform("evaluate", classifier, "--mix", "ngram").refusal
    assert refusal == "mix is for generate; this run is for classify"
    assert triform("evaluate", writer, "--mix", "words").refusal.startswith("mix='words' is not known; choose from")
    assert "--mix" in triform("evaluate", writer, "--mix", "ngram", "--lengths", "4").refusal
    moved = tmp_path / "moved"
    shutil.copytree(writer, moved)
    text = (moved / "config.toml").read_text(encoding="utf-8").replace("story.txt", "gone.txt")
    (moved / "config.toml").write_text(text, encoding="utf-8")
    data = ("--data", Path(__file__), "--no-verify")
    assert "gone.txt" in triform("evaluate", moved, *data, "--mix", "ngram").refusal


def test_dynamic_evaluation_is_labelled_in_the_table_and_in_json(
    triform: Command, classifier: Path, writer: Path, files: Files
) -> None:
    arguments = ("evaluate", writer, "--data", f"story={files.txt}", "--dynamic", "--dynamic-lr", 0.1)
    report = triform(*arguments, "--json").json
    assert report["dynamic"]["story"]["name"] == "dynamic evaluation"
    assert report["dynamic"]["story"]["lr"] == 0.1
    assert report["dynamic"]["story"]["tokens"] == report["sets"]["story"]["tokens"]
    lines = triform(*arguments).out.splitlines()
    assert lines[2].startswith("  dynamic evaluation ")
    assert lines[3].startswith("dynamic evaluation: the model learns from the text")
    assert (
        triform("evaluate", classifier, "--dynamic").refusal == "dynamic is for generate; this run is for classify"
    )
    assert (
        triform("evaluate", writer, "--dynamic", "--stride", 2).refusal
        == "--dynamic cannot be combined with --stride"
    )
    assert "--dynamic-lr needs --dynamic" in triform("evaluate", writer, "--dynamic-lr", 0.1).refusal


def test_text_is_generated_with_a_mixture(triform: Command, writer: Path, classifier: Path, tmp_path: Path) -> None:
    arguments = ("predict", writer, "the", "--mix", "ngram", "--max-new-tokens", 4, "--seed", 1)
    result = triform(*arguments)
    assert result.out.startswith("the")
    assert "note: mean weights of model + " in result.err
    assert triform(*arguments, "--quiet", "--json").json[0]["output"] in result.out
    assert (
        triform("predict", classifier, "good", "--mix", "ngram").refusal
        == "mix is for generate; this run is for classify"
    )
    assert triform("predict", writer, "the", "--mix", "words").refusal.startswith("mix='words' is not known")
    refusal = triform(*arguments, "--set", "decode.strategy=beam").refusal
    assert refusal.startswith("mix decodes greedily or samples")
    folder = ("--input", Path(__file__), "--output", f"{tmp_path}/out/")
    assert (
        "cannot be combined with an output folder" in triform("predict", writer, *folder, "--mix", "ngram").refusal
    )
