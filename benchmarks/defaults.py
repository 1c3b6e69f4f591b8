"""Compare the default language model on a CPU with nanoGPT's settings in the same time, and with n-grams.

The last tenth of the text is held out. `triform train generate` gets the rest with default settings. It trains on
nine tenths of that and validates on the last tenth, as nanoGPT does. Then a GPT in plain PyTorch with nanoGPT's
published settings for a CPU trains on the same nine tenths, for as many steps as fit into the same processor time;
its learning rate falls until the last of them. All figures are bits per byte of the
held-out text. The n-gram model has the tokens of Triform's run. `triform evaluate --mix ngram` mixes it in.

`--data FILE` is the text, for example Tiny Shakespeare. `--minutes N` sets `train.max_minutes`.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.options import build_parser
from benchmarks.report import BenchmarkReport
from benchmarks.time_to_loss import CPU_SIZES, SMOKE_SIZES, Sizes, train_peer
from triform.config import TaskName
from triform.data.builtin import stories
from triform.launch import train
from triform.run import Run

N_TIMED_STEPS = 100  # of the peer
SMOKE_SETTINGS = {"train.max_steps": 10, "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2}


def train_default(task: TaskName, data: str, folder: Path, settings: dict[str, Any]) -> tuple[Run, float]:
    """Train with default settings, and return the run and its processor time in seconds."""
    started_at = time.process_time()
    run = train(task, data=data, out=folder, device="cpu", quiet=True, **settings)
    return run, time.process_time() - started_at


def fit_peer_steps(report: BenchmarkReport, sizes: Sizes, text: str, valid_text: str, seconds: float) -> Sizes:
    """Return the settings of the peer with as many steps as fit into a processor time."""
    timed = replace(sizes, n_steps=min(sizes.n_steps, N_TIMED_STEPS))
    started_at = time.process_time()
    train_peer(report, timed, text, valid_text[: 2 * sizes.max_len])
    step_seconds = (time.process_time() - started_at) / timed.n_steps
    return replace(sizes, n_steps=max(1, int(seconds / step_seconds)))


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="cpu, which these defaults are for")
    parser.add_argument("--data", type=Path, help="a text file; without it, a built-in text, which is too easy")
    parser.add_argument("--minutes", type=float, default=0.0, help="train.max_minutes; by default not set")
    options = parser.parse_args(arguments)
    report = BenchmarkReport("defaults", options)
    text = options.data.read_text(encoding="utf-8") if options.data else stories("train")
    text, test_text = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    settings = SMOKE_SETTINGS if report.smoke else {"train.max_minutes": options.minutes}
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder) / "train.txt", Path(folder) / "test.txt")
        for file, part in zip(files, (text, test_text), strict=True):
            file.write_text(part, encoding="utf-8")
        run, seconds = train_default("generate", str(files[0]), Path(folder) / "run", settings)
        test_file, steps = str(files[1]), run.progress()["step"]
        bits = run.evaluate(test_file)["bits_per_byte"]
        report.add_figures(f"triform, default settings, {steps} steps", bits_per_byte=bits, seconds=seconds)
        (ngram,) = run.baselines(test_file).values()
        mixed = run.evaluate(test_file, mix=["ngram"])
        report.add_figures("n-grams", bits_per_byte=ngram["bits_per_byte"])
        report.add_figures("triform, mixed with n-grams", bits_per_byte=mixed["bits_per_byte"])
    text = text[: int((1 - run.config.data.valid_fraction) * len(text))]
    sizes = fit_peer_steps(report, SMOKE_SIZES if report.smoke else CPU_SIZES, text, test_text, seconds)
    started_at = time.process_time()
    _, loss = train_peer(report, sizes, text, test_text)
    peer_bits = loss / math.log(2) * len(test_text) / len(test_text.encode())
    report.add_figures(
        f"plain PyTorch with nanoGPT's settings, {sizes.n_steps} steps",
        bits_per_byte=peer_bits,
        seconds=time.process_time() - started_at,
    )
    report.write()


if __name__ == "__main__":
    main()
