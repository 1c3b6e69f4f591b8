"""Tokenize generated corpora of growing size, and print the time for each token and the peak memory.

python benchmarks/corpus_scale.py --out /tmp/corpus --megabytes 1 10 100 1000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

VOCABULARY, WORDS_PER_DOCUMENT = 50_000, 400


def write_corpus(path: Path, n_bytes: int) -> None:
    """Write documents of made-up words whose frequencies follow Zipf's law."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(rng.choice(letters, size=rng.integers(2, 11))) for _ in range(VOCABULARY)])
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < n_bytes:
            ranks = np.minimum(rng.zipf(1.2, size=WORDS_PER_DOCUMENT), VOCABULARY) - 1
            written += file.write(json.dumps({"text": " ".join(words[ranks])}) + "\n")


def run(*arguments: object) -> tuple[float, float]:
    """Run a Triform command and return its processor time in seconds and its peak memory in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import resource, sys; from triform.cli.main import main\ntry: main()\nfinally: print(resource.getrusage"
    code += "(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    completed = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(completed.stderr.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpora and the shards")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 10, 100, 1000])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = options.out / "tokenizer.json"
    print("| text | tokens | processor time | µs per token | peak memory |\n|---|---|---|---|---|")
    for megabytes in options.megabytes:
        corpus, shards = options.out / f"{megabytes:g}.jsonl", options.out / f"{megabytes:g}-shards"
        if not corpus.exists():
            write_corpus(corpus, int(megabytes * 1e6))
        if not tokenizer.exists():
            run("tokenizer", "train", corpus, "--vocab-size", 8192, "--out", tokenizer)
        seconds, memory = run("data", "tokenize", corpus, "--tokenizer", tokenizer, "--workers", 1, "--out", shards)
        n_tokens = json.loads((shards / "manifest.json").read_text(encoding="utf-8"))["tokens"]
        cost = 1e6 * seconds / n_tokens
        print(f"| {megabytes:g} MB | {n_tokens:,} | {seconds:.1f} s | {cost:.2f} | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
