"""Lines of `metrics.jsonl` end at the line feed only: a text may contain every other character that ends lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from same_runs import StoppedAfter, assert_same_run, read_events, train_run

from triform import train
from triform.experiments.seeds import train_seeds

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
SETTINGS: dict[str, Any] = {
    "model": {"d_model": 8, "n_layers": 1, "n_heads": 2, "dropout": 0.0},
    "tokenizer": {"kind": "char"},
    "data.max_len": 8,
    "device": "cpu",
    "quiet": True,
}
TRAIN = {"max_steps": 4, "eval_every": 2, "checkpoint_every": 2, "log_every": 1, "batch_size": 4}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Numbers between all separators, so that what is cut out of a line may be valid JSON."""
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n}{separator}" for n in range(10, 60) for separator in SEPARATORS), encoding="utf-8")
    return path


def write_run(text: Path, out: Path, **settings: Any) -> Path:
    return train("generate", data=text, out=out, **SETTINGS | {"train": TRAIN} | settings).path


def sample_texts(folder: Path) -> str:
    return "".join(event["input"] + event["output"] for event in read_events(folder) if event["event"] == "sample")


def test_the_samples_of_a_run_keep_every_separator(text: Path, tmp_path: Path) -> None:
    out = write_run(text, tmp_path / "run")
    assert set(SEPARATORS) <= set(sample_texts(out))
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "damaged line" not in report
    resumed = train("generate", out=out, resume=True, device="cpu", quiet=True).path
    assert sample_texts(resumed) == sample_texts(out)


def test_a_run_that_is_trained_longer_keeps_its_events(tmp_path: Path) -> None:
    """A notice of the run names its labels."""
    labels = [f"{name}\x8512\u2028{name}" for name in ("good", "bad")]
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"{labels[n % 2]}\tword {n}\n" for n in range(40)), encoding="utf-8")
    longer = TRAIN | {"max_steps": 8, "schedule": "constant"}
    unbroken = train_run(str(path), tmp_path / "unbroken", longer)
    assert any(labels[0] in event.get("text", "") for event in read_events(unbroken))
    out = train_run(str(path), tmp_path / "run", TRAIN | {"schedule": "constant"})
    train("classify", out=out, resume=True, train={"max_steps": 8}, device="cpu", quiet=True)
    assert_same_run(unbroken, out)


def test_a_line_that_a_kill_cut_is_all_that_is_lost(
    text: Path, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    unbroken = write_run(text, tmp_path / "unbroken")
    with stopped_after(3):
        write_run(text, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "sample", "step": 3, "output": "12\u202834')
    train("generate", out=tmp_path / "run", resume=True, device="cpu", quiet=True)
    assert_same_run(unbroken, tmp_path / "run")


def test_seeds_without_validation_data_are_told_their_last_losses(text: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"data": text, "data.valid_fraction": 0.0, "train": {**TRAIN, "eval_every": 0}}
    seeds = train_seeds("generate", 2, out=tmp_path / "seeds", **settings)
    for folder in seeds.folders:
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            sample = {"event": "sample", "step": 4, "input": "", "output": f"12{SEPARATORS}34"}
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    again = train_seeds("generate", 2, out=tmp_path / "seeds", resume=True, **settings)
    assert again.values == seeds.values
