"""The cost of training in several processes: the step of DDP and FSDP, checkpoints, and two processes on one CPU.

With one process, the steps of GPT-2 (124M parameters, 16 × 1,024 tokens, bf16; on a CPU a small model) are timed in
turns: the plain step, that of DDP and that of FSDP, on CUDA without graphs, and both eagerly and with compiled
blocks. Then come the same steps of a recurrent model, and the stall of a checkpoint. FSDP in one process is only
for this benchmark: nothing is sharded, so its cost is the work of FSDP on the host, which every process has.

On a CPU, two processes are also compared with one, with the same global batch, and a profile shows where the time
of their steps goes.

    python -m benchmarks.distributed [--smoke] [--json FILE] [--device cpu] [--only eager compiled checkpoint ...]
"""

from __future__ import annotations

import gc
import json
import os
import socket
import statistics
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
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.distributed_step import DataParallelTrainStep
from triform.training.train_step import TrainStep
from triform.world import current_world, join_world

SMALL_MODEL = {"model.d_model": 256, "model.d_ff": 1024, "model.n_layers": 4, "model.n_heads": 4}
NARROW_MODEL = {"model.d_model": 8, "model.d_ff": 8, "model.n_heads": 2, "data.max_len": 2, "train.batch_size": 2}
PART_NAMES = ("eager", "compiled", "recurrent", "checkpoint", "processes")
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


def build_recurrent_model(report: BenchmarkReport) -> dict[str, Any]:
    """Return the settings of an LSTM."""
    width, n_layers = (1024, 4) if report.cuda and not report.smoke else (16, 1) if report.smoke else (128, 2)
    shape = {"model.d_model": width, "model.n_layers": n_layers, "model.d_ff": 0, "model.n_heads": 0}
    return {"model.kind": "lstm", "data.max_len": 128, **shape}


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def release_memory(device: torch.device) -> None:
    """Free the memory of trainers that are no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure_steps(report: BenchmarkReport, folder: Path, title: str, *, use_compile: bool, **changes: Any) -> None:
    """Time the steps of one process in turns: plain, DDP and FSDP.

    Args:
        report: Receives the figures.
        folder: For the data and the run folders.
        title: The kind of model and step.
        use_compile: On CUDA, compile the blocks.
        changes: Settings of another model.
    """
    preset, settings = build_settings(report, folder)
    n_steps = 2 if report.smoke else 20
    contestants: dict[str, TimedFn] = {}
    with ExitStack() as stack:
        for name, parallel in {"triform": "auto", "DDP": "ddp", "FSDP": "fsdp"}.items():
            try:
                trainer = stack.enter_context(
                    open_trainer(
                        report,
                        folder,
                        "generate",
                        "" if changes else preset,
                        **(settings | changes),
                        **{"train.parallel": parallel},
                    )
                )
                choose_step(trainer.train_step, use_compile=use_compile)
                contestants[name] = build_trainer_run(trainer, n_steps)
            except (ConfigError, NotImplementedError) as error:
                report.add_skipped(name, str(error))
        timings = report.measure(
            f"{n_steps} steps, one process, {title}",
            contestants,
            1 if report.smoke else 9,
            units=n_steps,
            unit="steps",
        )
    plain = timings["triform"].median
    for name in [name for name in contestants if name != "triform"]:
        percent = 100 * (timings[name].median / plain - 1)
        report.add_figures(
            f"cost of the step of {name}, {title}", percent=percent, step_ms=timings[name].median / n_steps
        )


def choose_step(step: TrainStep, *, use_compile: bool) -> None:
    """Let a step run without CUDA graphs, which DDP and FSDP do not use either, with or without compiled blocks."""
    if isinstance(step, CudaGraphTrainStep):
        step.graph_cache.capture_enabled = False
    if isinstance(step, CudaGraphTrainStep | DataParallelTrainStep):
        step.use_compile = use_compile


def measure_checkpoint(report: BenchmarkReport, folder: Path) -> None:
    """Compare steps during which a checkpoint is written with as many others, in turns.

    There are so many steps that the checkpoint is complete before the last one. The default step is measured.
    """
    preset, settings = build_settings(report, folder)
    n_steps = 2 if report.smoke else 120 if report.cuda else 10
    with open_trainer(report, folder, "generate", preset, **settings) as trainer:
        first_step, other_steps = build_trainer_run(trainer, 1), build_trainer_run(trainer, n_steps - 1)
        save_seconds: list[float] = []

        def run_with_checkpoint() -> None:
            first_step()
            start_time = time.perf_counter()
            trainer.save_checkpoint()
            save_seconds.append(time.perf_counter() - start_time)
            other_steps()

        def run() -> None:
            first_step()
            other_steps()

        run_with_checkpoint()
        seconds: dict[TimedFn, list[float]] = {run: [], run_with_checkpoint: []}
        written = []
        for _ in range(1 if report.smoke else 15):
            for fn, times in seconds.items():
                trainer.checkpoint_writer.wait()
                synchronize(report.device)
                start_time = time.perf_counter()
                fn()
                synchronize(report.device)
                times.append(time.perf_counter() - start_time)
            written.append(trainer.checkpoint_writer.is_idle)
    plain = statistics.median(seconds[run])
    # Both turns of a pair meet the same clock rate and the same neighbours on the machine.
    stalls = [1e3 * (late - early) for early, late in zip(*seconds.values(), strict=True)]
    low, stall, high = statistics.quantiles(stalls, n=4) if len(stalls) > 1 else stalls * 3
    step_ms = 1e3 * plain / n_steps
    report.add_figures(
        "stall of a checkpoint",
        percent_of_a_step=100 * stall / step_ms,
        stall_ms=stall,
        stall_ms_low=low,
        stall_ms_high=high,
        step_ms=step_ms,
        save_checkpoint_ms=1e3 * statistics.median(save_seconds[1:]),
        complete_in_time=all(written),
    )


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
        with open_trainer(report, folder, "generate", "", **(settings | NARROW_MODEL)) as narrow_trainer:
            profile = profile_steps(run, build_trainer_run(narrow_trainer, n_steps), n_steps)
        if trainer.world.is_main:
            (folder / "step.json").write_text(
                json.dumps({"step_ms": 1e3 * min(seconds)} | profile), encoding="utf-8"
            )


def profile_steps(run: TimedFn, host_run: TimedFn, n_steps: int) -> dict[str, float]:
    """Return the milliseconds of a step in this process by what they are spent on.

    Processor time does not depend on other programs of the machine; waiting does.

    Args:
        run: Takes steps.
        host_run: Takes steps of a model with as many layers that is so narrow that computing takes no time.
        n_steps: The number of steps of each.
    """
    host_run()
    _, host, _ = measure_time(host_run)
    total, main_thread, other_threads = measure_time(run)
    figures = {
        "computing_ms": main_thread - host,
        "python_ms": host,
        "other_threads_ms": other_threads,  # with one thread for operators, those of gloo: all-reduce
        "waiting_ms": total - main_thread,
    }
    return {name: 1e3 * seconds / n_steps for name, seconds in figures.items()}


def measure_time(run: TimedFn) -> tuple[float, float, float]:
    """Return the seconds of a call, and the processor time of this thread and of the others."""
    start = time.perf_counter(), time.thread_time(), time.process_time()
    run()
    total, main_thread, process = (
        clock() - before
        for clock, before in zip((time.perf_counter, time.thread_time, time.process_time), start, strict=True)
    )
    return total, main_thread, process - main_thread


def measure_processes(report: BenchmarkReport, folder: Path) -> None:
    """Compare two processes with one thread each with one process that has one thread or two."""
    step_ms: dict[str, float] = {}
    launches = {"1 process": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}
    if report.smoke:
        del launches["1 process, 2 threads"]
    for name, (n_processes, n_threads) in launches.items():
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
        command = [sys.executable, *launcher, "-m", "benchmarks.distributed", "--device", "cpu"]
        command += ["--worker", str(folder)] + ["--smoke"] * report.smoke
        environment = {name: value for name, value in os.environ.items() if name not in SINGLE_PROCESS_VARIABLES}
        subprocess.run(command, check=True, env=environment | {"OMP_NUM_THREADS": str(n_threads)})
        figures = json.loads((folder / "step.json").read_text(encoding="utf-8"))
        step_ms[name] = figures["step_ms"]
        report.add_figures(
            f"{name}, the same global batch", throughput_ratio=step_ms["1 process"] / step_ms[name], **figures
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
    parser.add_argument("--only", nargs="+", choices=PART_NAMES, default=PART_NAMES, help="run only these parts")
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
        with join_world(resolve_device(options.device)):
            assert current_world().size == 1
            for title in ("eager", "compiled") if report.cuda else ("eager",):
                if title in options.only:
                    measure_steps(report, Path(name), title, use_compile=title == "compiled")
                    release_memory(report.device)
            if "recurrent" in options.only:
                measure_steps(report, Path(name), "recurrent", use_compile=False, **build_recurrent_model(report))
                release_memory(report.device)
            if "checkpoint" in options.only:
                measure_checkpoint(report, Path(name))
        if "processes" in options.only and not report.cuda:
            measure_processes(report, Path(name))
    report.write()


if __name__ == "__main__":
    main()
