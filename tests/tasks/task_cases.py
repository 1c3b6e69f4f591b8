"""Tiny data for the three tasks, and a task prepared from it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from triform.config import Config, TaskName
from triform.settings import build
from triform.tasks import TASKS, Prepared

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
    found: dict[str, None] = {}
    while len(found) < N_ROWS:
        found[" ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 16)))] = None
    return list(found)


def write_data(name: TaskName, folder: Path) -> Path:
    texts = sentences()
    if name == "generate":
        path = folder / "text.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
        return path
    others = [LABELS[len(text) % 3] if name == "classify" else " ".join(text.split()[::-1]) for text in texts]
    heading = ("text", "label") if name == "classify" else ("source", "target")
    rows = [dict(zip(heading, row, strict=True)) for row in zip(texts, others, strict=True)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(name: TaskName, folder: Path, train: Path | None = None, **asked: Any) -> Prepared:
    settings = {"task": name, "data.train": str(train or write_data(name, folder)), **TINY, **asked}
    made = TASKS[name].prepare(build(settings, Config()), folder / "run")
    made.task.model.eval()
    return made
