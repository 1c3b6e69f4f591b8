"""Encode text with BPE, compared with other libraries: the same text, vocabulary and ids.

    python -m benchmarks.tokenize_text               10 MB of generated text, a line at a time
    python -m benchmarks.tokenize_text --file F      the first 10 MB of a text file (also .gz)
    python -m benchmarks.tokenize_text --vocabulary V  GPT-2's, cl100k's ... instead of one learned here
    python -m benchmarks.tokenize_text --smoke       a little text, to see that it works
    python -m benchmarks.tokenize_text --json F      also write JSON

`tokenizers` and `tiktoken` use all cores. Triform's `encode_batch` uses one core; training encodes text as a
stream, which uses all cores for large texts. "new" means that no word is in Triform's cache. A ratio above 1
means that Triform is faster with new words.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.growth import write_text
from benchmarks.options import build_parser
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
    """Return the functions to time, and for each peer its ids."""
    core_tokenizer = bpe._backend  # the tokenizer of the library with the same vocabulary
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
    parser = build_parser(__doc__)
    parser.add_argument("--file", type=Path, help="text file to encode; by default the text is generated")
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument(
        "--vocabulary", type=Path, help="folder or file of a byte-level BPE tokenizer, from any library"
    )
    options = parser.parse_args(arguments)
    megabytes, vocab_size, repeats = (0.1, 400, 2) if options.smoke else (options.megabytes, options.vocab_size, 7)
    lines = list(StringIO(load_text(options.file, megabytes)))  # lines end at "\n" only
    if options.vocabulary:
        bpe = read_tokenizer(options.vocabulary)
    else:
        bpe = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=vocab_size), lines)
    assert isinstance(bpe, BpeTokenizer), "this tokenizer is not byte-level BPE, which this benchmark requires"
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
