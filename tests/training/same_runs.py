"""Train small runs, and compare two runs bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from triform.launch import train

StoppedAfter = Callable[[int], AbstractContextManager[None]]  # the fixture of conftest.py
TIMING_FIELDS = ("seconds", "time", "tokens_per_s", "step_ms", "real_share", "peak_memory")
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.2}


def train_run(rows: str, out: Path, train_settings: dict[str, Any], **kwargs: Any) -> Path:
    """Train a small classifier without progress display, and return its folder."""
    settings = {
        "data": rows,
        "out": out,
        "device": "cpu",
        "quiet": True,
        "model": MODEL,
        "train": train_settings,
    } | kwargs
    return train("classify", **settings).path


def read_events(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_bytes().splitlines()]
    return [
        {key: value for key, value in row.items() if key not in TIMING_FIELDS}
        for row in rows
        if row["event"] != "resume"
    ]


def assert_same_bits(first: Path, second: Path) -> None:
    """Best weights, last weights and optimizer are equal."""
    names = [next(iter(path.glob("checkpoints/*"))).name for path in (first, second)]
    assert names[0] == names[1]
    for name in ("model.safetensors", f"checkpoints/{names[0]}/tensors.safetensors"):
        left, right = load_file(first / name), load_file(second / name)
        assert left.keys() == right.keys()
        assert all(tensor.equal(right[key]) for key, tensor in left.items())


def assert_same_run(first: Path, second: Path) -> None:
    """The same bits, and the same events but for clocks."""
    assert_same_bits(first, second)
    assert read_events(first) == read_events(second)
