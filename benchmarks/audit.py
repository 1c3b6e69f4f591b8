"""What an audit costs: rows with planted near duplicates, read, folded, compared; how many were found.

    python -m benchmarks.audit                  100,000 rows of 200 words, and one row 100,000 times
    python -m benchmarks.audit --rows 1000000   as many as there is time and memory for
    python -m benchmarks.audit --quick          few rows, to see that it runs
    python -m benchmarks.audit --json F         also as JSON

Words come as often as words do (Zipf's law). A twentieth of the rows are copies with 1 to 4 words changed,
so that all of them are near. Time is of reading both files and of everything that `triform audit` finds in them.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from triform.config import DataConfig
from triform.data.audit import audit, read_set
from triform.text.stream import cores

Row = dict[str, Any]
WORDS = 200
LEXICON = 40_000


def write_rows(train: Path, test: Path, n: int) -> int:
    """Nine tenths of the rows to train on, a tenth to test on, half of these planted; how many were."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, LEXICON + 1)
    edges = np.cumsum(share / share.sum())
    drawn = np.minimum(np.searchsorted(edges, rng.random((n, WORDS))), LEXICON - 1)
    planted = n // 20
    for copied in range(planted):
        row = drawn[copied].copy()
        row[rng.choice(WORDS, int(rng.integers(1, 5)), replace=False)] = rng.integers(0, LEXICON, 1)
        drawn[n - 1 - copied] = row
    lexicon = np.array([f"w{number:x}" for number in range(LEXICON)], dtype=object)
    for path, part in ((train, drawn[: n - n // 10]), (test, drawn[n - n // 10 :])):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{number % 2}\t{' '.join(lexicon[row])}\n" for number, row in enumerate(part))
    return planted


def write_crowd(train: Path, test: Path, n: int) -> int:
    """One row, n times."""
    text = " ".join(f"word{number}" for number in range(WORDS))
    for path, count in ((train, n), (test, 10)):
        path.write_text(f"x\t{text}\n" * count, encoding="utf-8")
    return 0


def measure(train: Path, test: Path) -> Row:
    layout = DataConfig(header="no", label_column="1", text_column="2")
    start = time.perf_counter(), time.process_time()
    sets = {path.stem: read_set("classify", str(path), layout) for path in (train, test)}
    found = audit(sets).overlaps[0]
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    return {
        "seconds": seconds[0],
        "computing": seconds[1],
        "near": int(found.near.sum()),
        "seen": int(found.seen.sum()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args(arguments)
    n = 2000 if asked.quick else asked.rows
    print(f"{platform.machine()}, {cores()} cores, {n:,} rows of {WORDS} words")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.tsv", Path(folder) / "test.tsv"
        for name, write in (("planted", write_rows), ("one row", write_crowd)):
            planted = write(train, test, n)
            found = measure(train, test)
            rows.append({"name": name, "rows": n, "planted": planted, **found})
            print(
                f"{name:<10}{found['seconds']:>7.2f} s, computing {found['computing']:.2f} s; "
                f"near {found['near']:,} of {planted:,} planted, seen {found['seen']:,}",
                flush=True,
            )
    if asked.json:
        facts = {"machine": platform.machine(), "cores": cores(), "rows": rows}
        asked.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
