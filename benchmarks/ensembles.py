"""Train many seeds of a small model together, compared with one seed, with the real trainer.

The model is the preset `speeches-lm` (64 wide, 4 layers, 5,755 words, 16 × 32 tokens a step, 500 steps) on
generated text. Times are measured for the whole command, including data and files, and for its training.

    python -m benchmarks.ensembles [--smoke] [--json FILE] [--device cpu] [--seeds 32]
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import build_parser, default_device
from triform.experiments.seeds import train_seeds
from triform.io.events import read_events
from triform.launch import train

VOCAB_WORDS = 5_751  # the vocabulary of the speeches without the four special tokens


def generate_text(n_words: int, n_kinds: int) -> str:
    """Return text whose words follow Zipf's law; each word occurs at least once."""
    rng = random.Random(0)
    words = [f"w{index}" for index in range(n_kinds)]
    text_words = words + rng.choices(words, weights=[1 / (index + 1) for index in range(n_kinds)], k=n_words)
    return "\n".join(" ".join(text_words[start : start + 20]) for start in range(0, len(text_words), 20))


def time_training(
    n_seeds: int, data: Path, out: Path, device: str, settings: dict[str, Any]
) -> tuple[float, float]:
    """Return the seconds of training n seeds: of the whole command, and of training alone."""
    options = {"preset": "speeches-lm", "data": data, "device": device, "quiet": True, **settings}
    start_time = time.perf_counter()
    if n_seeds == 1:
        folders = [train("generate", out=out, **options).path]
    else:
        folders = list(train_seeds("generate", n_seeds, out=out, **options).folders)
    total_seconds = time.perf_counter() - start_time
    training_seconds = []
    for folder in folders:
        events = read_events(folder / "metrics.jsonl")
        training_seconds += [event["seconds"] for event in events if event["event"] == "end"]
    return total_seconds, max(training_seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default=default_device(), help="cpu or cuda")
    parser.add_argument("--seeds", type=int, nargs="+", help="numbers of seeds that are trained together")
    options = parser.parse_args(arguments)
    steps, repeats = (6, 1) if options.smoke else (500, 3)
    settings: dict[str, Any] = {"train": {"max_steps": steps}}
    if options.smoke:
        settings["model"] = {"d_model": 8, "d_ff": 16, "n_layers": 1}
    seed_counts = [
        1,
        *(options.seeds or ([3] if options.smoke else [8, 32, 128] if options.device == "cuda" else [8])),
    ]
    machine_name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{machine_name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {steps} steps each")
    timings: dict[int, list[tuple[float, float]]] = {n_seeds: [] for n_seeds in seed_counts}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text.txt"
        data.write_text(
            generate_text(*((2_000, 50) if options.smoke else (200_000, VOCAB_WORDS))), encoding="utf-8"
        )
        for repeat in range(repeats + 1):  # the first turn is a warm-up and is not counted
            for n_seeds in seed_counts:
                times = time_training(
                    n_seeds, data, Path(folder) / f"run-{repeat}-{n_seeds}", options.device, settings
                )
                timings[n_seeds] += [times] if repeat or options.smoke else []
    rows = []
    single_medians = [statistics.median(column) for column in zip(*timings[1], strict=True)]
    for n_seeds in seed_counts:
        total_seconds, training_seconds = (
            statistics.median(column) for column in zip(*timings[n_seeds], strict=True)
        )
        rate = n_seeds * steps / training_seconds
        rows.append(
            {"seeds": n_seeds, "whole_s": total_seconds, "training_s": training_seconds, "model_steps_per_s": rate}
        )
        ratios = (
            f"{total_seconds / single_medians[0]:5.2f} x one   {training_seconds / single_medians[1]:5.2f} x one"
        )
        print(
            f"{n_seeds:4} seeds  whole {total_seconds:8.2f} s  training {training_seconds:8.2f} s  "
            f"{rate:9,.0f} model-steps/s  {ratios}"
        )
    if options.json:
        content = {"machine": machine_name, "torch": torch.__version__, "steps": steps, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
