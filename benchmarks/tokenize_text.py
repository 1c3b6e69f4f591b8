"""Byte-pair encoding beside its peers: the same text, the same vocabulary, the same ids.

    python -m benchmarks.tokenize_text               10 MB of generated text, a line at a time
    python -m benchmarks.tokenize_text --file F      the first 10 MB of a text file (also .gz)
    python -m benchmarks.tokenize_text --vocabulary V  GPT-2's, cl100k's ... instead of one learned here
    python -m benchmarks.tokenize_text --quick       a little text, to see that it runs
    python -m benchmarks.tokenize_text --json F      also as JSON

`tokenizers` and `tiktoken` use all cores. Triform's `encode_batch` uses one; training encodes as a stream, which
uses all of them once there is much text. "new" meets every word for the first time. A ratio above 1 says that
Triform is faster when it is new.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.growth import write_text
from benchmarks.timing import TimedFn, time_in_turns
from triform.config import TokenizerConfig
from triform.data.files import iter_text_blocks
from triform.text import BpeTokenizer, encode_stream, read_tokenizer, train_tokenizer
from triform.text.parallel import available_cpus

Ids = list[list[int]]
OWN_NAME = "triform"


def load_text(file: Path | None, megabytes: float) -> str:
    if file is None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "text.txt"
            write_text(file, megabytes)
            return file.read_text(encoding="utf-8")
    text = ""
    for block in iter_text_blocks(str(file)):
        text += block
        if len(text) >= megabytes * 1e6:
            break
    return text[: int(megabytes * 1e6)]


def build_contestants(
    bpe: BpeTokenizer, lines: list[str]
) -> tuple[dict[str, TimedFn], dict[str, Callable[[], Ids]]]:
    """What is timed, and for each peer the ids it gives."""
    core_tokenizer = bpe._backend  # the library's own tokenizer, of the same vocabulary
    chunks = [lines[start : start + 2048] for start in range(0, len(lines), 2048)]

    def clear_cache() -> BpeTokenizer:
        bpe._word_cache.clear()
        return bpe

    runs: dict[str, TimedFn] = {
        OWN_NAME: lambda: bpe.encode_batch(lines),
        f"{OWN_NAME}, new": lambda: clear_cache().encode_batch(lines),
        f"{OWN_NAME}, new, as a stream": lambda: list(encode_stream(clear_cache(), chunks)),
        "tokenizers encode_batch": lambda: core_tokenizer.encode_batch(lines, add_special_tokens=False),
        "tokenizers encode_batch_fast": lambda: core_tokenizer.encode_batch_fast(lines, add_special_tokens=False),
    }
    encoders: dict[str, Callable[[], Ids]] = {
        OWN_NAME: lambda: bpe.encode_batch(lines),
        "tokenizers": lambda: [row.ids for row in core_tokenizer.encode_batch(lines, add_special_tokens=False)],
    }
    try:
        import tiktoken
    except ImportError:
        print("tiktoken is not installed")
        return runs, encoders
    peer = tiktoken.Encoding("ours", pat_str=bpe.pattern, mergeable_ranks=bpe.ranks()[0], special_tokens={})
    runs["tiktoken encode_ordinary"] = lambda: [peer.encode_ordinary(line) for line in lines]
    runs["tiktoken encode_ordinary_batch"] = lambda: peer.encode_ordinary_batch(lines, num_threads=available_cpus())
    encoders["tiktoken"] = lambda: peer.encode_ordinary_batch(lines, num_threads=available_cpus())
    return runs, encoders


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="text to encode; generated where none is given")
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--vocabulary", type=Path, help="a folder or file of byte BPE, of any library")
    parser.add_argument("--quick", action="store_true", help="a little text, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    megabytes, vocab_size, repeats = (0.1, 400, 2) if options.quick else (options.megabytes, options.vocab_size, 7)
    lines = load_text(options.file, megabytes).splitlines(keepends=True)
    if options.vocabulary:
        bpe = read_tokenizer(options.vocabulary)
    else:
        bpe = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=vocab_size), lines)
    assert isinstance(bpe, BpeTokenizer), "byte BPE is compared here, and this is none"
    n_bytes = sum(len(line.encode()) for line in lines)
    machine = f"{platform.machine()}, {available_cpus()} cores"
    print(f"{machine}, {n_bytes / 1e6:.1f} MB in {len(lines)} lines, a vocabulary of {bpe.vocab_size}")
    runs, encoders = build_contestants(bpe, lines)
    ids = {name: encode() for name, encode in encoders.items()}
    ids_equal = all(content == ids[OWN_NAME] for content in ids.values())
    print(f"{sum(map(len, ids[OWN_NAME])):,} tokens, {'the same ids everywhere' if ids_equal else 'IDS DIFFER'}")
    rows: list[dict[str, Any]] = []
    timings = time_in_turns(runs, repeats, torch.device("cpu"))
    for name, timing in timings.items():
        row = {"who": name, **asdict(timing), "MB/s": n_bytes / 1e3 / timing.median}
        row["ratio"] = timing.median / timings[f"{OWN_NAME}, new"].median
        rows.append(row)
        print(f"{name:<32} {row['MB/s']:7.2f} MB/s   {timing}   ratio {row['ratio']:.2f}", flush=True)
    if options.json:
        content = {"machine": machine, "bytes": n_bytes, "same_ids": ids_equal, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
