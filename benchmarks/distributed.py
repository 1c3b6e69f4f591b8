"""The cost of training in several processes: the step of DDP and FSDP, checkpoints, and two processes on one CPU.

With one process, the steps of GPT-2 (124M parameters, 16 × 1,024 tokens, bf16; on a CPU a small model) are timed in
turns: the plain step, that of DDP, that of FSDP, and steps during which a checkpoint is written. On a CPU, two
processes are also compared with one, with the same global batch.

    python -m benchmarks.distributed [--smoke] [--json FILE] [--device cpu]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import build_parser, default_device
from benchmarks.report import BenchmarkReport
from benchmarks.timing import TimedFn
from benchmarks.training import build_trainer_run, open_trainer, write_words
from triform.device import resolve_device
from triform.errors import ConfigError
from triform.training.trainer import Trainer
from triform.world import current_world, join_world

SMALL_MODEL = {"model.d_model": 256, "model.d_ff": 1024, "model.n_layers": 4, "model.n_heads": 4}
TINY_MODEL = {"model.d_model": 16, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2}


def build_settings(report: BenchmarkReport, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the preset and the settings of the model that this device can train."""
    is_large = report.cuda and not report.smoke
    vocab_size, length, batch_size = (50_257, 1024, 16) if is_large else (2_000, 128, 16)
    text = folder / "words.txt"
    if not text.exists():
        write_words(text, 3_000_000 if is_large else 60_000, vocab_size - 4, 100)
    settings = {"data.train": str(text), "data.max_len": length, "tokenizer.kind": "word", "model.dropout": 0.0}
    settings |= {"train.batch_size": batch_size, "train.lr": 6e-4}
    if is_large:
        return "gpt2-small", settings
    return "", settings | (TINY_MODEL if report.smoke else SMALL_MODEL)


def measure_one_process(report: BenchmarkReport, folder: Path) -> None:
    """Time the steps of one process in turns: plain, DDP, FSDP, and with a checkpoint."""
    preset, settings = build_settings(report, folder)
    n_steps = 2 if report.smoke else 20
    contestants: dict[str, TimedFn] = {}
    with ExitStack() as stack:
        for name, parallel in {"triform": "auto", "DDP": "ddp", "FSDP": "fsdp"}.items():
            try:
                trainer = open_trainer(
                    report, folder, "generate", preset, **settings, **{"train.parallel": parallel}
                )
                contestants[name] = build_trainer_run(stack.enter_context(trainer), n_steps)
            except (ConfigError, NotImplementedError) as error:
                report.add_skipped(name, str(error))
        trainer = stack.enter_context(open_trainer(report, folder, "generate", preset, **settings))
        contestants["with a checkpoint"] = build_checkpoint_run(trainer, n_steps)
        timings = report.measure(
            f"{n_steps} steps, one process", contestants, 1 if report.smoke else 9, units=n_steps, unit="steps"
        )
    plain = timings["triform"].median
    for name in contestants.keys() - {"triform", "with a checkpoint"}:
        report.add_figures(f"cost of the step of {name}", percent=100 * (timings[name].median / plain - 1))
    stall = (timings["with a checkpoint"].median - plain) / (plain / n_steps)
    report.add_figures("stall of a checkpoint", percent_of_a_step=100 * stall)


def build_checkpoint_run(trainer: Trainer, n_steps: int) -> TimedFn:
    """Return a function that takes steps and saves a checkpoint after the first one."""
    first_step, other_steps = build_trainer_run(trainer, 1), build_trainer_run(trainer, n_steps - 1)

    def run() -> None:
        first_step()
        trainer.save_checkpoint()
        other_steps()

    return run


def measure_worker(report: BenchmarkReport, folder: Path) -> None:
    """Print the seconds of a step of all processes, as JSON. The main process starts this with torchrun."""
    preset, settings = build_settings(report, folder)
    n_steps = 2 if report.smoke else 10
    with open_trainer(report, folder, "generate", preset, **settings) as trainer:
        run = build_trainer_run(trainer, n_steps)
        run()
        seconds = []
        for _ in range(1 if report.smoke else 3):
            start_time = time.perf_counter()
            run()
            seconds.append((time.perf_counter() - start_time) / n_steps)
        if trainer.world.is_main:
            (folder / "seconds.json").write_text(json.dumps(min(seconds)), encoding="utf-8")


def measure_processes(report: BenchmarkReport, folder: Path) -> None:
    """Compare two processes with one thread each with one process that has one thread or two."""
    step_seconds: dict[str, float] = {}
    launches = {"1 process": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}
    if report.smoke:
        del launches["1 process, 2 threads"]
    for name, (n_processes, n_threads) in launches.items():
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
        command = [sys.executable, *launcher, "-m", "benchmarks.distributed", "--device", "cpu"]
        command += ["--worker", str(folder)] + ["--smoke"] * report.smoke
        environment = {name: value for name, value in os.environ.items() if name not in SINGLE_PROCESS_VARIABLES}
        subprocess.run(command, check=True, env=environment | {"OMP_NUM_THREADS": str(n_threads)})
        step_seconds[name] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
        report.add_figures(
            f"{name}, the same global batch",
            step_ms=1e3 * step_seconds[name],
            throughput_ratio=step_seconds["1 process"] / step_seconds[name],
        )


SINGLE_PROCESS_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def become_single_process() -> None:
    """Set the environment variables of a world of one process, as torchrun does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= dict(zip(SINGLE_PROCESS_VARIABLES, ("0", "1", "0", "127.0.0.1", str(port)), strict=True))


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default=default_device(), help="cpu or cuda; by default cuda if there is a GPU")
    parser.add_argument("--worker", type=Path, help="a folder; used by the benchmark to start its processes")
    options = parser.parse_args(arguments)
    if options.worker:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with join_world(resolve_device(options.device)):
            measure_worker(BenchmarkReport("distributed", options), options.worker)
        return
    report = BenchmarkReport("distributed", options)
    with tempfile.TemporaryDirectory() as name:
        become_single_process()
        with join_world(report.device):
            assert current_world().size == 1
            measure_one_process(report, Path(name))
        if not report.cuda:
            measure_processes(report, Path(name))
    report.write()


if __name__ == "__main__":
    main()
