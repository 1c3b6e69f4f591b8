"""Measure the time and the recall of an audit on rows with planted near duplicates.

    python -m benchmarks.audit                  100,000 rows of 200 words, and one row 100,000 times
    python -m benchmarks.audit --rows 1000000   more rows, if there is time and memory
    python -m benchmarks.audit --smoke          few rows, to see that it works
    python -m benchmarks.audit --json F         also write JSON

Words follow Zipf's law. A twentieth of the rows are copies with 1 to 4 words changed, so that all of them are near
duplicates. Times include reading both files and all checks of `triform audit`.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import build_parser
from triform.config import DataConfig
from triform.data.audit import audit_sets, read_audit_set
from triform.text.parallel import available_cpus

Row = dict[str, Any]
WORDS_PER_ROW = 200
LEXICON_SIZE = 40_000


def write_rows(train: Path, test: Path, n_rows: int) -> int:
    """Write nine tenths of the rows for training and a tenth, half of it planted, for testing."""
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
    """Write the same row n times."""
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
    parser = build_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    n_rows = 2000 if options.smoke else options.rows
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
