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
from triform.data.audit import audit_sets, read_audit_set
from triform.text.parallel import available_cpus

Row = dict[str, Any]
WORDS_PER_ROW = 200
LEXICON_SIZE = 40_000


def write_rows(train: Path, test: Path, n_rows: int) -> int:
    """Nine tenths of the rows to train on, a tenth to test on, half of these planted; how many were."""
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, LEXICON_SIZE + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    word_ids = np.minimum(np.searchsorted(cumulative, rng.random((n_rows, WORDS_PER_ROW))), LEXICON_SIZE - 1)
    n_planted = n_rows // 20
    for index in range(n_planted):
        row = word_ids[index].copy()
        row[rng.choice(WORDS_PER_ROW, int(rng.integers(1, 5)), replace=False)] = rng.integers(0, LEXICON_SIZE, 1)
        word_ids[n_rows - 1 - index] = row
    lexicon = np.array([f"w{number:x}" for number in range(LEXICON_SIZE)], dtype=object)
    for path, rows in ((train, word_ids[: n_rows - n_rows // 10]), (test, word_ids[n_rows - n_rows // 10 :])):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{number % 2}\t{' '.join(lexicon[row])}\n" for number, row in enumerate(rows))
    return n_planted


def write_repeated_row(train: Path, test: Path, n_copies: int) -> int:
    """One row, n times."""
    text = " ".join(f"word{number}" for number in range(WORDS_PER_ROW))
    for path, count in ((train, n_copies), (test, 10)):
        path.write_text(f"x\t{text}\n" * count, encoding="utf-8")
    return 0


def measure(train: Path, test: Path) -> Row:
    data_config = DataConfig(header="no", label_column="1", text_column="2")
    start = time.perf_counter(), time.process_time()
    sets = {path.stem: read_audit_set("classify", str(path), data_config) for path in (train, test)}
    overlap = audit_sets(sets).overlaps[0]
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    return {
        "seconds": seconds[0],
        "computing": seconds[1],
        "near": int(overlap.near.sum()),
        "seen": int(overlap.seen.sum()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    n_rows = 2000 if options.quick else options.rows
    print(f"{platform.machine()}, {available_cpus()} cores, {n_rows:,} rows of {WORDS_PER_ROW} words")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.tsv", Path(folder) / "test.tsv"
        for name, write_files in (("planted", write_rows), ("one row", write_repeated_row)):
            n_planted = write_files(train, test, n_rows)
            figures = measure(train, test)
            rows.append({"name": name, "rows": n_rows, "planted": n_planted, **figures})
            print(
                f"{name:<10}{figures['seconds']:>7.2f} s, computing {figures['computing']:.2f} s; "
                f"near {figures['near']:,} of {n_planted:,} planted, seen {figures['seen']:,}",
                flush=True,
            )
    if options.json:
        content = {"machine": platform.machine(), "cores": available_cpus(), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
