"""Many seeds of a small model trained together, beside one seed alone, through the real trainer.

The model is the preset `speeches-lm` (64 wide, 4 layers, 5,755 words, 16 × 32 tokens a step, 500 steps) on
generated text. Times are of the whole command, data and files included, and of the training in it.

    python -m benchmarks.populations [--quick] [--json FILE] [--device cpu] [--seeds 32]
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

from triform.launch import train
from triform.seeds import train_seeds

WORDS = 5_751  # with the four special tokens R4's vocabulary


def text(n_words: int, vocabulary: int) -> str:
    """Words as often as in a language: the nth one n times rarer than the first, and each at least once."""
    rng = random.Random(0)
    names = [f"w{n}" for n in range(vocabulary)]
    drawn = names + rng.choices(names, weights=[1 / (n + 1) for n in range(vocabulary)], k=n_words)
    return "\n".join(" ".join(drawn[start : start + 20]) for start in range(0, len(drawn), 20))


def timed(n: int, data: Path, out: Path, device: str, settings: dict[str, Any]) -> tuple[float, float]:
    """Seconds of training n seeds: all of it, and the training alone."""
    how = {"preset": "speeches-lm", "data": data, "device": device, "quiet": True, **settings}
    began = time.perf_counter()
    if n == 1:
        folders = [train("generate", out=out, **how).path]
    else:
        folders = list(train_seeds("generate", n, out=out, **how).folders)
    whole = time.perf_counter() - began
    ends = []
    for folder in folders:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ends += [json.loads(line)["seconds"] for line in lines if '"event": "end"' in line]
    return whole, max(ends)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="how many are trained together; several numbers may be"
    )
    asked = parser.parse_args(arguments)
    steps, repeats = (6, 1) if asked.quick else (500, 3)
    settings: dict[str, Any] = {"train": {"max_steps": steps}}
    if asked.quick:
        settings["model"] = {"d_model": 8, "d_ff": 16, "n_layers": 1}
    counts = [1, *(asked.seeds or ([3] if asked.quick else [8, 32, 128] if asked.device == "cuda" else [8]))]
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.machine()
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {steps} steps each")
    seen: dict[int, list[tuple[float, float]]] = {n: [] for n in counts}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "text.txt"
        data.write_text(text(*((2_000, 50) if asked.quick else (200_000, WORDS))), encoding="utf-8")
        for turn in range(repeats + 1):  # the first turn starts the device and does not count
            for n in counts:
                times = timed(n, data, Path(folder) / f"run-{turn}-{n}", asked.device, settings)
                seen[n] += [times] if turn or asked.quick else []
    rows = []
    one = [statistics.median(column) for column in zip(*seen[1], strict=True)]
    for n in counts:
        whole, alone = (statistics.median(column) for column in zip(*seen[n], strict=True))
        rate = n * steps / alone
        rows.append({"seeds": n, "whole_s": whole, "training_s": alone, "model_steps_per_s": rate})
        ratios = f"{whole / one[0]:5.2f} x one   {alone / one[1]:5.2f} x one"
        print(f"{n:4} seeds  whole {whole:8.2f} s  training {alone:8.2f} s  {rate:9,.0f} model-steps/s  {ratios}")
    if asked.json:
        found = {"machine": name, "torch": torch.__version__, "steps": steps, "rows": rows}
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
