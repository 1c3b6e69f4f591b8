"""Count the test rows that are also in the training file, and split the test set into seen and unseen rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triform.config import DataConfig
from triform.data.audit import find_leaked
from triform.data.readers import read_lines, read_rows

if TYPE_CHECKING:
    from reproduce.data import ExperimentData


def leaked_mask(data: ExperimentData, eval_set: str) -> list[bool]:
    """Return for each text of an evaluation set whether it is also a training text."""
    train_file = data.system.files.get("data.train") or data.system.files["data.source"]
    eval_file = data.system.eval_files[eval_set].split(",")[0]
    train_texts, eval_texts = (list(iterate_texts(str(data.files[name]))) for name in (train_file, eval_file))
    return find_leaked(train_texts, eval_texts)


def count_leaks(data: ExperimentData) -> dict[str, dict[str, int]]:
    """Return the number of texts in each evaluation set, and how many of them are also in the training file."""
    train_files = {data.system.files.get(name) for name in ("data.train", "data.source")}
    counts = {}
    for eval_set, files in data.system.eval_files.items():
        if files and files.split(",")[0] not in train_files:
            mask = leaked_mask(data, eval_set)
            counts[eval_set] = {"rows": len(mask), "seen": sum(mask)}
    return counts


def split_leaked_rows(data: ExperimentData) -> dict[str, str]:
    """Write the test rows that are in the training file and those that are not to two files."""
    mask = leaked_mask(data, "test")
    rows = list(read_rows(data.resolve_path(data.system.eval_files["test"]), DataConfig()))
    paths = {}
    for name, expected in (("seen", True), ("unseen", False)):
        lines = [f"{row.label}\t{row.text}\n" for row, leaked in zip(rows, mask, strict=True) if leaked is expected]
        if lines:
            path = data.folder / f"{name}.tsv"
            path.write_text("".join(lines), encoding="utf-8")
            paths[f"test, {name}"] = str(path.absolute())
    return paths


def iterate_texts(path: str) -> Iterator[str]:
    """Yield the texts of a table, or the lines of any other file."""
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix in (".tsv", ".csv", ".jsonl"):
        return (row.text for row in read_rows(path, DataConfig(), labelled=False))
    return (text for _, text in read_lines(path))
