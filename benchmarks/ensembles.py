"""Many seeds of a small model trained together, beside one seed alone, through the real trainer.

The model is the preset `speeches-lm` (64 wide, 4 layers, 5,755 words, 16 × 32 tokens a step, 500 steps) on
generated text. Times are of the whole command, data and files included, and of the training in it.

    python -m benchmarks.ensembles [--quick] [--json FILE] [--device cpu] [--seeds 32]
"""

from __future__ import annotations

import argparse
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

from triform.experiments.seeds import train_seeds
from triform.launch import train

VOCAB_WORDS = 5_751  # with the four special tokens, the vocabulary of the speeches


def generate_text(n_words: int, n_kinds: int) -> str:
    """Words as often as in a language: the nth one n times rarer than the first, and each at least once."""
    rng = random.Random(0)
    words = [f"w{index}" for index in range(n_kinds)]
    text_words = words + rng.choices(words, weights=[1 / (index + 1) for index in range(n_kinds)], k=n_words)
    return "\n".join(" ".join(text_words[start : start + 20]) for start in range(0, len(text_words), 20))


def time_training(
    n_seeds: int, data: Path, out: Path, device: str, settings: dict[str, Any]
) -> tuple[float, float]:
    """Seconds of training n seeds: all of it, and the training alone."""
    options = {"preset": "speeches-lm", "data": data, "device": device, "quiet": True, **settings}
    start_time = time.perf_counter()
    if n_seeds == 1:
        folders = [train("generate", out=out, **options).path]
    else:
        folders = list(train_seeds("generate", n_seeds, out=out, **options).folders)
    total_seconds = time.perf_counter() - start_time
    training_seconds = []
    for folder in folders:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        training_seconds += [json.loads(line)["seconds"] for line in lines if '"event": "end"' in line]
    return total_seconds, max(training_seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="how many are trained together; several numbers may be"
    )
    options = parser.parse_args(arguments)
    steps, repeats = (6, 1) if options.quick else (500, 3)
    settings: dict[str, Any] = {"train": {"max_steps": steps}}
    if options.quick:
        settings["model"] = {"d_model": 8, "d_ff": 16, "n_layers": 1}
    seed_counts = [
        1,
        *(options.seeds or ([3] if options.quick else [8, 32, 128] if options.device == "cuda" else [8])),
    ]
    machine_name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{machine_name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {steps} steps each")
    timings: dict[int, list[tuple[float, float]]] = {n_seeds: [] for n_seeds in seed_counts}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text.txt"
        data.write_text(
            generate_text(*((2_000, 50) if options.quick else (200_000, VOCAB_WORDS))), encoding="utf-8"
        )
        for repeat in range(repeats + 1):  # the first turn starts the device and does not count
            for n_seeds in seed_counts:
                times = time_training(
                    n_seeds, data, Path(folder) / f"run-{repeat}-{n_seeds}", options.device, settings
                )
                timings[n_seeds] += [times] if repeat or options.quick else []
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
