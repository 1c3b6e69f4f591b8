"""Several sets are evaluated while a run trains: by name, every few steps or every epoch, resumed exactly."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import triform
from triform.cli.main import app
from triform.errors import CheckpointError, ConfigError, DataError, RunInterruptedError
from triform.experiments.seeds import train_seeds
from triform.launch import RunOptions
from triform.reporting.run_history import read_history
from triform.training.trainer import Trainer

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}
TASKS = ("classify", "generate", "translate")


def write_set(path: Path, task: str, start: int, n: int) -> str:
    """Write examples that a seed never repeats, and return the path."""
    lines = {
        "classify": (
            f"{'good' if i % 3 else 'bad'}\tword{i % 17} thing{i % 5} is {i}" for i in range(start, start + n)
        ),
        "generate": (f"line {i} says {'so ' * (i % 4)}it is {i * 7 % 13}." for i in range(start, start + n)),
        "translate": (
            f"one {i} two {i % 7}\tun {i} deux {i % 7}{' fin' * (i % 3)}" for i in range(start, start + n)
        ),
    }
    path.write_text("".join(f"{line}\n" for line in lines[task]), encoding="utf-8")
    return str(path)


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, dict[str, str]]:
    """The training file and three others of every task."""
    return {
        task: {
            name: write_set(tmp_path / f"{task}-{name}.{'txt' if task == 'generate' else 'tsv'}", task, start, n)
            for name, start, n in (("train", 0, 120), ("dev", 200, 30), ("near", 300, 20), ("far", 900, 25))
        }
        for task in TASKS
    }


def train(sets: dict[str, str], task: Any, out: Path, **settings: Any) -> triform.Run:
    others = {name: file for name, file in sets.items() if name != "train"}
    options = {"quiet": True} | {
        name: settings.pop(name) for name in ("quiet", "progress", "resume") if name in settings
    }
    train_settings = {"max_steps": 12, "eval_every": 4, "eval_train": 10} | settings.pop("train", {})
    return triform.train(
        task, data=sets["train"], valid=others, out=str(out), model=TINY, train=train_settings, seed=3,
        device="cpu", **options, **settings,
    )  # fmt: skip


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def without_times(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "time", "tokens_per_s", "step_ms", "peak_memory", "real_share")
    lines = map(json.loads, (folder / "metrics.jsonl").read_bytes().splitlines())
    return [
        {key: value for key, value in event.items() if key not in timed}
        for event in lines
        if event["event"] in ("valid", "monitor", "best")
    ]


@pytest.mark.parametrize("task", TASKS)
def test_every_set_is_evaluated_at_every_validation(
    task: str, sets: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    run = train(sets[task], task, tmp_path / "run")
    monitored = events(run.path, "monitor")
    assert [(event["step"], event["set"]) for event in monitored] == [
        (step, name) for step in (4, 8, 12) for name in ("train", "near", "far")
    ]
    assert [event["step"] for event in events(run.path, "valid")] == [4, 8, 12]
    best_step = events(run.path, "end")[0]["best_step"]  # the stored weights are those of this step
    evaluated = {event["set"]: event for event in monitored if event["step"] == best_step}
    metric = run.task.metric
    for name in ("near", "far"):
        decode = {"strategy": "greedy"} if task == "translate" else {}
        expected = run.evaluate(sets[task][name], **decode)
        assert evaluated[name]["loss"] == pytest.approx(expected["loss"], abs=1e-6)
        assert evaluated[name][metric] == pytest.approx(expected[metric], abs=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_other_sets_change_nothing_in_training(task: str, sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    train(sets[task], task, tmp_path / "many")
    only_dev = {name: sets[task][name] for name in ("train", "dev")}
    train(only_dev, task, tmp_path / "one", train={"eval_train": 0})
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("many", "one"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert events(tmp_path / "one", "monitor") == []


def test_all_training_examples_can_be_evaluated(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    run = train(sets["classify"], "classify", tmp_path / "run", train={"eval_train": -1})
    best_step = events(run.path, "end")[0]["best_step"]
    (event,) = (e for e in events(run.path, "monitor") if e["set"] == "train" and e["step"] == best_step)
    assert event["rows"] == 120
    assert event["accuracy"] == pytest.approx(run.evaluate(sets["classify"]["train"])["accuracy"])


def test_a_part_of_the_training_text_has_its_own_number_of_bytes(
    sets: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    run = train(sets["generate"], "generate", tmp_path / "run", **{"data.max_len": 8})
    (event,) = (e for e in events(run.path, "monitor") if e["set"] == "train" and e["step"] == 12)
    assert event["tokens"] == 80  # ten windows of eight
    text = Path(sets["generate"]["train"]).read_text(encoding="utf-8")
    n_bytes = len(run.task.tokenizer.decode(run.task.tokenizer.encode(text)[:81]).encode())
    assert event["bits_per_byte"] == pytest.approx(event["loss"] * 80 / n_bytes / np.log(2))


@pytest.mark.parametrize("accumulation", [1, 3])
def test_validations_follow_every_epoch(accumulation: int, sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    settings = {"eval_every": "epoch", "epochs": 3, "max_steps": 0, "batch_size": 16, "patience": 0}
    train(sets["classify"], "classify", tmp_path / "run", train=settings | {"grad_accumulation": accumulation})
    steps_per_epoch = 8 / accumulation  # 120 rows in batches of 16
    expected = [int(np.ceil(epoch * steps_per_epoch)) for epoch in (1, 2, 3)]
    assert [event["step"] for event in events(tmp_path / "run", "valid")] == expected
    assert [event["step"] for event in events(tmp_path / "run", "monitor") if event["set"] == "far"] == expected


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stop_in", ["a step", "an evaluation"])
def test_a_resumed_run_has_the_same_weights_and_metrics(
    task: str, stop_in: str, sets: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"eval_every": "epoch", "batch_size": 30, "max_steps": 10, "log_every": 1}
    train(sets[task], task, tmp_path / "unbroken", train=settings)
    stop_at(6 if stop_in == "a step" else 9, stop_in, monkeypatch)
    with pytest.raises(RunInterruptedError):
        train(sets[task], task, tmp_path / "resumed", train=settings)
    monkeypatch.undo()
    train(sets[task], task, tmp_path / "resumed", train=settings, resume=True)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("unbroken", "resumed"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert without_times(tmp_path / "unbroken") == without_times(tmp_path / "resumed")
    assert read_history(tmp_path / "resumed").monitored_sets == ["train", "near", "far"]


def stop_at(count: int, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a stop in the nth step, or while the nth set is evaluated."""
    name = "step" if moment == "a step" else "evaluate"
    original, calls = getattr(Trainer, name), []

    def stopping(trainer: Trainer, *args: Any) -> Any:
        calls.append(None)
        if len(calls) == count:
            trainer.stop_requested = True
        return original(trainer, *args)

    monkeypatch.setattr(Trainer, name, stopping)


def test_seeds_evaluate_the_same_sets_as_single_runs(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    files = sets["classify"]
    settings = {"train.max_steps": 4, "train.eval_every": 2, "train.batch_size": 8, "train.eval_train": 10}
    valid = {name: files[name] for name in ("dev", "far")}
    stream = io.StringIO()
    options = RunOptions(out=str(tmp_path / "seeds"), device="cpu", progress=stream)
    model = {f"model.{name}": value for name, value in (TINY | {"dropout": 0.0}).items()}
    train_seeds("classify", 2, options=options, data=files["train"], valid=valid, seed=3, **settings, **model)
    alone = triform.train(
        "classify", data=files["train"], valid=valid, out=str(tmp_path / "alone"), quiet=True, seed=4, device="cpu",
        **settings, **model,
    )  # fmt: skip
    for seed_event, single in zip(
        events(tmp_path / "seeds" / "seed-4", "monitor"), events(alone.path, "monitor"), strict=True
    ):
        assert (seed_event["set"], seed_event["step"]) == (single["set"], single["step"])
        assert seed_event["loss"] == pytest.approx(single["loss"], abs=1e-4)
    rows = [line for line in stream.getvalue().splitlines() if line.startswith("|")]
    assert "train accuracy | dev accuracy | far accuracy" in rows[0]
    assert len(rows) == 2 * (2 + 2), "a table for each seed"


def test_validations_are_printed_as_a_table(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    stream = io.StringIO()
    train(sets["classify"], "classify", tmp_path / "run", quiet=False, progress=stream, train={"log_every": 2})
    rows = [line.strip("|").split("|") for line in stream.getvalue().splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in rows[0]] == [
        "step", "training loss", "train accuracy", "dev accuracy", "near accuracy", "far accuracy", "time",
    ]  # fmt: skip
    assert [row[0].strip() for row in rows[2:]] == ["4", "8", "12"]
    losses = [event["loss"] for event in events(tmp_path / "run", "train") if 4 < event["step"] <= 8]
    assert rows[3][1].strip() == f"{np.mean(losses):.4f}"
    (dev,) = (event for event in events(tmp_path / "run", "valid") if event["step"] == 8)
    assert rows[3][3].strip() == f"{100 * dev['accuracy']:.2f} %"


def test_a_run_without_a_validation_set_can_evaluate_its_training_set(
    sets: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    stream = io.StringIO()
    run = triform.train(
        "classify", data=sets["classify"]["train"], out=str(tmp_path / "run"), device="cpu", progress=stream,
        model=TINY, train={"max_steps": 4, "eval_every": 2, "eval_train": 10}, **{"data.valid_fraction": 0.0},
    )  # fmt: skip
    assert [event["step"] for event in events(run.path, "monitor")] == [2, 4]
    assert events(run.path, "valid") == []
    assert "train accuracy" in stream.getvalue()


def test_the_report_draws_a_curve_for_every_set(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    train(sets["generate"], "generate", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for name in ("dev", "near", "far", "training examples"):
        assert f"<span>{name}</span>" in page


def test_padding_counts_as_correct_where_reports_count_it(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    run = train(sets["translate"], "translate", tmp_path / "run", train={"batch_size": 4})
    dataset = run.task.data.load_dataset(sets["translate"]["dev"], [])
    lengths = [len(run.task.target_tokenizer.encode(pair.target)) + 1 for pair in dataset.raw_pairs]
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    n_padding = 0
    for start in range(0, len(order), 4):
        batch = [lengths[index] for index in order[start : start + 4]]
        n_padding += sum(max(batch) - length for length in batch)
    assert n_padding > 0
    metrics = run.evaluate(sets["translate"]["dev"])
    n_correct = metrics["token_accuracy"] * sum(lengths)
    expected = (n_correct + n_padding) / (sum(lengths) + n_padding)
    assert metrics["token_accuracy_with_padding"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.monitor": ("test",)}, "data.monitor='test' must be NAME=FILE"),
        ({"data.monitor": ("test=",)}, "data.monitor='test=' must be NAME=FILE"),
        ({"data.monitor": ("a=x.tsv", "a=y.tsv")}, "two sets are named 'a'"),
        ({"data.monitor": ("valid=x.tsv",)}, "two sets are named 'valid'"),
        ({"data.monitor": ("train=x.tsv",)}, "two sets are named 'train'"),
        ({"data.valid_name": "train"}, "'train' is the name of the training examples"),
        ({"data.valid_name": ""}, "data.valid_name is empty; give the validation data a name"),
        ({"train.eval_every": "epochs"}, "train.eval_every='epochs' must be a whole number or epoch"),
        ({"train.eval_every": -1}, "train.eval_every=-1 must be"),
        ({"train.eval_train": -2}, "train.eval_train=-2 must be"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        triform.train("classify", out=str(tmp_path / "run"), quiet=True, **settings)


def test_the_option_for_validation_sets_can_be_repeated(
    sets: dict[str, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sets["classify"]
    arguments = ["train", "classify", "--data", files["train"], "--out", str(tmp_path / "run"), "--max-steps", "2"]
    arguments += ["--valid", f"dev={files['dev']}", "--valid", files["far"], "--device", "cpu", "--preset", "tiny"]
    app(arguments, standalone_mode=False)
    config = triform.load(tmp_path / "run").config.data
    assert (config.valid_name, config.valid) == ("dev", files["dev"])
    assert config.monitored_files == [("classify-far.tsv", files["far"])]
    assert "dev accuracy | classify-far.tsv accuracy" in capsys.readouterr().err


def test_a_missing_set_is_named(sets: dict[str, dict[str, str]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.tsv"):
        train(sets["classify"] | {"gone": str(tmp_path / "gone.tsv")}, "classify", tmp_path / "run")


def test_a_set_that_changed_stops_a_resume(
    sets: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(6, "a step", monkeypatch)
    with pytest.raises(RunInterruptedError):
        train(sets["classify"], "classify", tmp_path / "run")
    monkeypatch.undo()
    write_set(Path(sets["classify"]["far"]), "classify", 0, 5)
    with pytest.raises(CheckpointError, match=r"classify-far\.tsv has changed since the run started"):
        train(sets["classify"], "classify", tmp_path / "run", resume=True)
