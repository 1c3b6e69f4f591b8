"""Measure how preparation grows with the text: time per token and peak memory before the first training step.

    python -m benchmarks.growth                       1, 10 and 100 MB of generated text
    python -m benchmarks.growth --sizes 1 10 100 1000    sizes in MB
    python -m benchmarks.growth --smoke               tiny sizes, to see that it works
    python -m benchmarks.growth --json F              also write JSON

Each size is prepared twice, in separate processes: first with an empty token cache, then from the cache.
Preparation includes resolving the settings, learning the vocabulary, encoding, building the model, and the
batches of the first steps. Memory is the peak of the process. "mapped" is the memory of mapped files at the end
(libraries and tokens), which the system can free.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import build_parser
from triform.data.files import MIN_CACHED_BYTES
from triform.text.parallel import available_cpus

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
N_BATCHES = 50  # number of steps whose batches are built
LEXICON_SIZE = 40_000  # common words; every hundredth word of a text is a new one


def write_text(path: Path, megabytes: float, seed: int = 0) -> None:
    """Write generated text: words by Zipf's law, unique names, numbers, lines and paragraphs."""
    rng = np.random.default_rng(seed)
    syllables = np.array(
        [
            consonant + vowel
            for consonant in "bcdfghklmnprstvwz"
            for vowel in ("a", "e", "i", "o", "u", "an", "er", "ou", "é")
        ]
    )

    def make_words(count: int) -> list[str]:
        syllable_rows = syllables[rng.integers(0, len(syllables), (count, 4))]
        return [
            "".join(row[:size]) for row, size in zip(syllable_rows, rng.integers(1, 5, count).tolist(), strict=True)
        ]

    lexicon = np.array(make_words(LEXICON_SIZE), dtype=object)
    frequencies = 1 / np.arange(1, LEXICON_SIZE + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    remaining_bytes = int(megabytes * 1e6)
    with path.open("wb") as file:
        while remaining_bytes > 0:
            words = lexicon[np.minimum(np.searchsorted(cumulative, rng.random(60_000)), LEXICON_SIZE - 1)]
            words[::100] = [
                f"{word.title()}{number}" for word, number in zip(make_words(600), range(600), strict=True)
            ]
            words[11::12] = [f"{word}.\n" for word in words[11::12]]
            block = " ".join(words.tolist()).replace("\n ", "\n").encode()[:remaining_bytes]
            file.write(block.decode(errors="ignore").encode())
            remaining_bytes -= len(block)


def prepare(file: Path, folder: Path, vocab_size: int) -> Row:
    """Do what training on this file does before its first step, in this process."""
    from triform.config.settings import build_config
    from triform.tasks import TASKS

    start = time.perf_counter()
    model_settings = {"model.d_model": 64, "model.n_layers": 1, "model.n_heads": 2, "train.batch_size": 16}
    settings = {
        "task": "generate",
        "data.train": str(file),
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": vocab_size,
    }
    prepared = TASKS["generate"].prepare(build_config(settings | model_settings), folder)
    sampler = prepared.train.sampler(prepared.task.config.train, 0)
    for _ in range(N_BATCHES):
        prepared.train.batch(sampler.next_batch())
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)
    tokens = len(prepared.train) + len(prepared.valid or ())
    return {"tokens": tokens, "seconds": seconds, "MiB": peak, "MiB mapped": mapped_mib()}


def mapped_mib() -> float:
    """Return the MiB of mapped files in this process's memory, which the system can free."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssFile"))


def prepare_in_subprocess(file: Path, folder: Path, vocab_size: int, cache: Path) -> Row:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.growth", "--one", str(file), str(folder), str(vocab_size)]
    environment = os.environ | {"TRIFORM_CACHE": str(cache)}
    completed = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    figures: Row = json.loads(completed.stdout)
    return figures


def compare(sizes: list[float], vocab_size: int, folder: Path) -> list[Row]:
    rows: list[Row] = []
    print(f"{'text':>9} {'cache':<6} {'tokens':>12} {'seconds':>9} {'µs/token':>9} {'MiB':>7} {'mapped':>7}")
    for size in sizes:
        file = folder / f"{size}.txt"
        write_text(file, size)
        for cache_state in ("empty", "full"):
            figures = prepare_in_subprocess(
                file, folder / f"{cache_state}-{size}", vocab_size, folder / f"cache-{size}"
            )
            us_per_token = 1e6 * figures["seconds"] / figures["tokens"]
            rows.append({"MB": size, "cache": cache_state, **figures, "µs/token": us_per_token})
            print(
                f"{size:>6g} MB {cache_state:<6} {figures['tokens']:>12,} {figures['seconds']:>9.2f} "
                f"{us_per_token:>9.3f} {figures['MiB']:>7.0f} {figures['MiB mapped']:>7.0f}",
                flush=True,
            )
        file.unlink()
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="sizes of the text in MB")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(prepare(Path(options.one[0]), Path(options.one[1]), int(options.one[2]))))
        return
    sizes, vocab_size = (
        ([0.2, MIN_CACHED_BYTES / 1e6], 300) if options.smoke else (options.sizes, options.vocab_size)
    )
    print(f"{platform.machine()}, {available_cpus()} cores, vocabulary of {vocab_size}")
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(sizes, vocab_size, Path(folder))
    if options.json:
        content = {"machine": platform.machine(), "cores": available_cpus(), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
