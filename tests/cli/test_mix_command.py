"""`--mix`, which is short for `decode.mix`: a language model and its mixture with counts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

Command = Any  # `triform(...)` of conftest
Files = Any  # small data of each kind


def test_the_model_alone_is_a_row_below_its_mixture(triform: Command, writer: Path, files: Files) -> None:
    data = ("--data", f"story={files.txt}")
    report = triform("evaluate", writer, *data, "--mix", "ngram,cache", "--json").json
    mixture, alone, metrics = report["mixture"], report["model_alone"]["story"], report["sets"]["story"]
    assert metrics["tokens"] == alone["tokens"]
    assert metrics["loss"] < alone["loss"]
    assert alone == triform("evaluate", writer, *data, "--json").json["sets"]["story"]
    assert sum(mixture["weights"]) == pytest.approx(1)
    lines = triform("evaluate", writer, *data, "--set", "decode.mix=ngram,cache").out.splitlines()
    assert lines[1].startswith("story ")
    assert lines[2].startswith("  model alone ")
    names = " + ".join(mixture["components"])
    assert lines[3].startswith(f"mean weights of {names}, learned on validation data: model 0.")


def test_a_mixture_that_cannot_be_made_is_refused_in_one_line(
    triform: Command, classifier: Path, writer: Path, files: Files, tmp_path: Path
) -> None:
    refusal = triform("evaluate", classifier, "--mix", "ngram").refusal
    assert refusal == "decode.mix is for generate; this run is for classify"
    refusal = triform("evaluate", writer, "--mix", "ngrams").refusal
    assert refusal.startswith(
        "--mix ngrams: decode.mix=ngrams is not valid; choose from ngram, cache (did you mean"
    )
    refusal = triform("evaluate", writer, "--mix", "ngram", "--set", "decode.mix=cache").refusal
    assert refusal.startswith("--mix ngram and --set decode.mix=cache give the same setting different values")
    assert "decode.mix" in triform("evaluate", writer, "--mix", "ngram", "--lengths", "4").refusal
    assert "decode.mix" in triform("evaluate", writer, "--mix", "ngram", "--details").refusal
    for task in ("classify", "translate"):
        refusal = triform("train", task, "--set", "decode.mix=ngram", "--out", tmp_path / task).refusal
        assert refusal == f"decode.mix applies to generate only, not to {task}; leave it out"
    moved = tmp_path / "moved"
    shutil.copytree(writer, moved)
    text = (moved / "config.toml").read_text(encoding="utf-8").replace("story.txt", "gone.txt")
    (moved / "config.toml").write_text(text, encoding="utf-8")
    data = ("--data", files.txt, "--no-verify")
    assert "gone.txt" in triform("evaluate", moved, *data, "--mix", "ngram").refusal


def test_a_run_that_was_trained_with_the_setting_uses_it(
    triform: Command, writer: Path, files: Files, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(writer, copied)
    config = (copied / "config.toml").read_text(encoding="utf-8")
    assert "\nmix = []\n" in config
    (copied / "config.toml").write_text(config.replace("\nmix = []\n", '\nmix = ["ngram"]\n'), encoding="utf-8")
    arguments = ("evaluate", copied, "--data", f"story={files.txt}", "--no-verify", "--json")
    report = triform(*arguments).json
    assert report["mixture"]["components"][0] == "model"
    alone = triform(*arguments, "--mix", "").json
    assert alone["sets"] == report["model_alone"]
    assert "mixture" not in alone
    assert "note: mean weights of model + " in triform("predict", copied, "the", "--no-verify").err


def test_text_is_generated_with_a_mixture(triform: Command, writer: Path, classifier: Path, tmp_path: Path) -> None:
    arguments = ("predict", writer, "the", "--mix", "ngram", "--max-new-tokens", 4, "--seed", 1)
    result = triform(*arguments)
    assert result.out.startswith("the")
    assert "note: mean weights of model + " in result.err
    assert triform(*arguments, "--quiet", "--json").json[0]["output"] in result.out
    refusal = triform("predict", classifier, "good", "--mix", "ngram").refusal
    assert refusal == "decode.mix is for generate; this run is for classify"
    assert "decode.mix=words is not valid" in triform("predict", writer, "the", "--mix", "words").refusal
    refusal = triform(*arguments, "--set", "decode.strategy=beam").refusal
    assert refusal.startswith("decode.mix works with greedy decoding and sampling")
    folder = ("--input", Path(__file__), "--output", f"{tmp_path}/out/")
    assert (
        "cannot be combined with an output folder" in triform("predict", writer, *folder, "--mix", "ngram").refusal
    )
