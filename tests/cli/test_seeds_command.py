"""`train --seeds`: several folders, one line a validation, and an interval at the end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from triform.training.trainer import Trainer

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any


def test_seeds_are_runs_like_any_other_and_their_interval_is_told(
    triform: Command, train: Command, files: Files, tmp_path: Path
) -> None:
    out = tmp_path / "many"
    result = train("classify", "--data", files.csv, "--out", out, "--seeds", 3, "--seed", 5)
    assert result.code == 0, result.err
    assert sorted(path.name for path in out.iterdir()) == ["seed-5", "seed-6", "seed-7"]
    assert re.search(r"^seed-6 +\d+\.\d\d %$", result.out, re.MULTILINE)
    last = r"accuracy of 3 seeds: (\S+) ± (\S+) % \(95 % interval: (\S+) to (\S+) %, Student's t\)\n"
    match = re.search(last, result.out)
    assert match
    mean, half_width, low, high = map(float, match.groups())
    assert (low, high) == pytest.approx((mean - half_width, mean + half_width), abs=0.02)
    assert re.findall(r"^seed (\d):$", result.err, re.MULTILINE) == ["5", "6", "7"]
    run = out / "seed-6"
    assert triform("predict", run, "the soup was lovely").code == 0
    assert triform("evaluate", run, "--data", files.csv).code == 0
    assert "seed = 6" in (run / "config.toml").read_text()


def test_seeds_answer_in_json(train: Command, files: Files, tmp_path: Path) -> None:
    result = train(
        "generate", "--data", files.txt, "--out", tmp_path / "many", "--seeds", 2, "--json", "--quiet",
        "--set", "data.max_len=8", "--set", "data.valid_fraction=0",
    )  # fmt: skip
    assert result.err == ""
    report = result.json
    assert report["metric"] == "training loss"
    values = [row["value"] for row in report["seeds"]]
    assert report["mean"] == pytest.approx(sum(values) / 2)
    assert report["low"] < report["mean"] < report["high"]
    assert [Path(row["run"]).name for row in report["seeds"]] == ["seed-0", "seed-1"]


@pytest.mark.parametrize("seeds", [0, -3])
def test_fewer_than_one_seed_is_refused(seeds: int, train: Command, files: Files, tmp_path: Path) -> None:
    refusal = train("classify", "--data", files.csv, "--out", tmp_path / "many", f"--seeds={seeds}").refusal
    assert refusal == f"--seeds {seeds} must be a number of models from 1 to 500"
    assert not (tmp_path / "many").exists()


def test_folders_that_are_taken_are_refused(train: Command, files: Files, tmp_path: Path, classifier: Path) -> None:
    refusal = train("classify", "--data", files.csv, "--out", classifier, "--seeds", 2).refusal
    assert refusal == f"{classifier} contains a single run; choose another --out for several seeds"
    many = ("classify", "--data", files.csv, "--out", tmp_path / "many", "--seeds", 2)
    assert "nothing to resume, because there is no such folder" in train(*many, "--resume").refusal
    assert train(*many, "--quiet").code == 0
    assert f"{tmp_path / 'many' / 'seed-0'} already contains a finished run" in train(*many).refusal
    assert train(*many, "--quiet", "--resume").code == 0
    assert train(*many, "--quiet", "--overwrite").code == 0
    single_refusal = train("classify", "--data", files.csv, "--out", tmp_path / "many").refusal
    assert "exists and is not a run folder" in single_refusal


def test_data_that_cannot_be_read_leaves_no_folder(train: Command, tmp_path: Path) -> None:
    result = train("classify", "--data", tmp_path / "none.csv", "--out", tmp_path / "many", "--seeds", 2)
    assert "no such file" in result.refusal
    assert not (tmp_path / "many").exists()


def test_interrupted_seeds_say_how_to_go_on_and_do(
    train: Command, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "many"
    arguments = ("classify", "--data", files.csv, "--out", out, "--seeds", 3, "--seed", 2, "--quiet")
    with monkeypatch.context() as patch:
        original = Trainer.after_step
        patch.setattr(Trainer, "after_step", lambda self: (original(self), self.stop()))
        result = train(*arguments)
    assert result.code == 130
    assert f"continue with: triform train classify --out {out} --seeds 3 --seed 2 --resume" in result.err
    assert train(*arguments, "--resume").code == 0
    for seed in (2, 3, 4):
        lines = (out / f"seed-{seed}" / "metrics.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["reason"] for line in lines if b'"end"' in line] == ["max_steps"]


def test_seeds_that_join_later_train_as_the_others_did(
    triform: Command, train: Command, files: Files, tmp_path: Path
) -> None:
    out = tmp_path / "many"
    data = ("classify", "--data", files.csv, "--out", out)
    assert train(*data, "--seeds", 2, "--quiet", "--set", "model.dropout=0.25").code == 0
    assert triform("train", *data, "--seeds", 3, "--quiet", "--resume").code == 0
    configs = [(out / f"seed-{seed}" / "config.toml").read_text().splitlines() for seed in (0, 2)]
    assert [pair for pair in zip(*configs, strict=True) if pair[0] != pair[1]] == [("seed = 0", "seed = 2")]


def test_seeds_that_are_not_there_cannot_be_resumed_and_a_folder_of_seeds_is_an_ensemble(
    triform: Command, train: Command, files: Files, tmp_path: Path
) -> None:
    many = ("classify", "--data", files.csv, "--out", tmp_path / "many", "--seeds", 2)
    assert train(*many, "--quiet").code == 0
    refusal = train(*many, "--resume", "--seed", 7).refusal
    assert refusal == f"{tmp_path / 'many'}: nothing to resume, because there are no runs of the seeds 7 to 8"
    assert "cannot be used together" in train(*many, "--resume", "--overwrite").refusal
    seeds = [tmp_path / "many" / f"seed-{seed}" for seed in (0, 1)]
    answers = [triform("predict", seed, "lovely", "--json").json[0]["probabilities"] for seed in seeds]
    for name in (tmp_path / "many", f"{seeds[0]},{seeds[1]}"):
        probabilities = triform("predict", name, "lovely", "--json").json[0]["probabilities"]
        means = [(answers[0][label] + answers[1][label]) / 2 for label in probabilities]
        assert list(probabilities.values()) == pytest.approx(means, abs=1e-6)
    metrics = triform("evaluate", tmp_path / "many", "--data", files.csv, "--json").json
    assert metrics["run"] == str(tmp_path / "many")
    assert metrics["sets"][files.csv.name]["rows"] == 40
    output = ("--input", files.csv, "--output", f"{tmp_path / 'parts'}/")
    assert triform("predict", tmp_path / "many", *output, "--quiet").code == 0
    assert "of the run has changed since these predictions" in triform("predict", seeds[0], *output).last_line
    assert (
        "many is an ensemble, and --page shows single runs" in triform("serve", tmp_path / "many", "--page").refusal
    )
    refusal = triform("params", tmp_path / "many").refusal
    assert refusal.endswith(f"it holds runs with several seeds: choose one of them, such as {seeds[0]}")
    for command, *arguments in (("explain", "lovely"), ("convert export", "--to", "hf")):
        arguments += ["--out", tmp_path / "out.html"]
        assert triform(*command.split(), tmp_path / "many", *arguments).refusal.startswith(
            "this is an ensemble of 2 models, and "
        )


def test_runs_of_an_ensemble_must_agree(triform: Command, classifier: Path, writer: Path) -> None:
    refusal = triform("predict", f"{classifier},{writer}", "lovely").refusal
    assert refusal == f"{classifier} and {writer} cannot be averaged: their tasks are classify and generate"
    assert triform("predict", f"{classifier},{classifier}/none", "lovely").refusal.endswith("no such run folder")
    refusal = triform("predict", f"{classifier},{classifier}", "lovely", "--adapter", "a.safetensors").refusal
    assert refusal.endswith("is an ensemble of 2 runs; an adapter applies to a single run")
    assert "needs a name; write NAME=" in triform("serve", f"{classifier},{classifier}").refusal


def test_the_training_data_of_any_run_of_an_ensemble_is_recognised(
    triform: Command, classifier: Path, files: Files, tmp_path: Path
) -> None:
    first = tmp_path / "first"  # it no longer knows its data
    shutil.copytree(classifier, first, ignore=shutil.ignore_patterns("checkpoints"))
    result = triform("evaluate", f"{first},{classifier}", "--data", files.csv)
    assert result.err.startswith(f"warning: {files.csv} has the same content as the training data; ")
