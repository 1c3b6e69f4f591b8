"""`pretrain`: texts of several files, the next command, and one line for what cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Command = DataFiles = Any  # of conftest.py
STEPS = ("--max-steps", 4, "--device", "cpu")
TINY = (*("--set", "model.d_model=16", "--set", "model.n_layers=1", "--set", "model.n_heads=2"), *STEPS)


def test_texts_of_several_files_become_a_run_to_start_from(
    triform: Command, files: DataFiles, tmp_path: Path
) -> None:
    lines, run = tmp_path / "lines.txt", tmp_path / "run"
    lines.write_text("the soup was cold\n\nthe room was clean\n" * 20)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.txt").write_text("an unusual zebra\nran by\n")
    data = ("--data", lines, "--data", files.csv, "--data", tmp_path / "more")
    result = triform("pretrain", *data, "--out", run, *TINY)
    assert result.code == 0, result.err
    assert f"next:       triform train classify --from {run} --data FILE" in result.out
    assert "zebra" in (run / "tokenizer.json").read_text()
    assert triform("predict", run, "the <mask> was cold", "--top", 2).out.splitlines()[1].split() == [
        "token",
        "probability",
    ]
    assert "has none" in triform("predict", run, "the soup was cold").refusal
    assert triform("evaluate", run, "--json").json["sets"]["valid"]["loss"] > 0
    assert triform("params", run, "--json").json["parameters"] > 0
    assert "a check needs a model for classify" in triform("check", run).refusal
    resumed = triform("train", "classify", "--resume", "--out", run, "--quiet", "--json")
    assert resumed.json["step"] == 4
    classifier = triform("train", "classify", "--from", run, "--data", files.csv, "--out", tmp_path / "c", *STEPS)
    assert classifier.code == 0, classifier.err
    assert "tensors loaded: encoder.embedding" in classifier.err


def test_pretraining_for_generate_is_training_of_generate(triform: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a ship. " * 40)
    result = triform("pretrain", "--for", "generate", "--data", text, "--out", tmp_path / "run", *TINY)
    assert result.code == 0, result.err
    assert 'task = "generate"' in (tmp_path / "run" / "config.toml").read_text()


def test_a_resume_needs_only_the_folder_of_the_run(triform: Command, files: DataFiles, tmp_path: Path) -> None:
    folders = {}
    for task, steps in (("classify", 4), ("translate", 4), ("translate", 6)):
        folders[task, steps] = tmp_path / f"{task}-{steps}"
        data = ("--for", task, "--data", files.source, "--data", files.target)
        options = (*TINY, "--set", "train.schedule=constant", "--max-steps", steps)
        assert triform("pretrain", *data, *options, "--out", folders[task, steps]).code == 0
    resumed = triform("pretrain", "--out", folders["classify", 4], "--resume", "--json", "--quiet")
    assert resumed.json["step"] == 4
    longer = ("--resume", "--max-steps", 6, "--device", "cpu", "--quiet")
    assert triform("pretrain", "--out", folders["translate", 4], *longer).code == 0
    weights = [folders["translate", steps] / "model.safetensors" for steps in (4, 6)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for out in ("none", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert "--data FILE" in triform("pretrain", "--out", tmp_path / out, "--resume").refusal
    assert "--data FILE" in triform("pretrain", "--out", tmp_path / "none").refusal
    wrong = triform("pretrain", "--for", "generate", "--out", folders["classify", 4], "--resume").refusal
    assert "task: generate (the run has classify)" in wrong


def test_bad_input_is_refused_with_one_line(triform: Command, tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\n  \n\n")
    out = ("--out", tmp_path / "run")
    assert "choose from classify, generate, translate" in triform("pretrain", "--for", "x", "--data", blank).refusal
    assert "no texts to train on" in triform("pretrain", "--data", blank, *out).refusal
    assert (
        "one file or folder"
        in triform("pretrain", "--for", "generate", "--data", blank, "--data", blank, *out).refusal
    )
    assert str(tmp_path / "none.txt") in triform("pretrain", "--data", tmp_path / "none.txt", *out).refusal
    conflict = triform("pretrain", "--data", blank, "--set", "train.objective=denoise", *out).refusal
    assert "--for" in conflict
    assert not (tmp_path / "run").exists()
