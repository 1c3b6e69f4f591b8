"""Tiny data for the three tasks, and a task prepared from it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from triform.config import Config, TaskName
from triform.config.settings import build_config
from triform.tasks import TASKS, PreparedTask

NAMES: tuple[TaskName, ...] = ("classify", "generate", "translate")
WORDS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty"]
LABELS = ("10", "2", "blue")
N_ROWS = 120
TINY = {
    "seed": 3,
    "data.max_len": 14,
    "tokenizer.kind": "word",
    "model.d_model": 16,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "decode.strategy": "greedy",
    "decode.max_new_tokens": 9,
}


def sentences() -> list[str]:
    """Distinct, of unequal length, in an order that Python's generator fixes."""
    rng = random.Random(4)
    texts: dict[str, None] = {}
    while len(texts) < N_ROWS:
        texts[" ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 16)))] = None
    return list(texts)


def write_data(name: TaskName, folder: Path) -> Path:
    texts = sentences()
    if name == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
        return path
    second_column = [
        LABELS[len(text) % 3] if name == "classify" else " ".join(text.split()[::-1]) for text in texts
    ]
    columns = ("text", "label") if name == "classify" else ("source", "target")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(texts, second_column, strict=True)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepare_task(name: TaskName, folder: Path, train: Path | None = None, **overrides: Any) -> PreparedTask:
    settings = {"task": name, "data.train": str(train or write_data(name, folder)), **TINY, **overrides}
    prepared_task = TASKS[name].prepare(build_config(settings, Config()), folder / "run")
    prepared_task.task.model.eval()
    return prepared_task
