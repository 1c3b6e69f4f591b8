"""The memory bandwidth of a CPU, and the share of it that decoding reaches.

A decode step of one text reads all weights of the linear layers once and computes little with them, so it cannot
take less time than reading them takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.report import BenchmarkReport
from benchmarks.timing import Timing

N_BYTES, REPEATS = 1 << 29, 12  # much larger than the caches of a processor


class Bandwidth(NamedTuple):
    """GB that are read in a second: of time, and of the processor time of all threads, the best of several turns.

    Other programs change the time, and hardly the processor time.
    """

    by_time: float
    by_cpu_time: float


def measure_read_bandwidth(n_threads: int, n_bytes: int = N_BYTES, repeats: int = REPEATS) -> Bandwidth:
    """Measure how fast so many threads sum numbers in memory."""
    n_threads_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        numbers = torch.ones(n_bytes // 4, dtype=torch.float32)
        turns = []
        for _ in range(repeats):
            start, cpu_start = time.perf_counter(), time.process_time()
            numbers.sum()
            turns.append((time.perf_counter() - start, time.process_time() - cpu_start))
        return Bandwidth(*(n_bytes / min(seconds) / 1e9 for seconds in zip(*turns, strict=True)))
    finally:
        torch.set_num_threads(n_threads_before)


def count_linear_weights(model: nn.Module) -> int:
    """Return the number of weights that a decode step reads: those of all linear layers, the head among them."""
    return sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))


def report_bandwidth_shares(
    report: BenchmarkReport, timings: Mapping[str, Timing], n_weights: int, n_steps: int
) -> None:
    """Report the bandwidth of the machine, and the share that each contestant reaches, also by processor time.

    Args:
        report: The report. Contestants with int8 in their names read one byte for each weight, others four.
        timings: The time of `n_steps` decode steps of each contestant.
        n_weights: The number of weights that a step reads.
        n_steps: The number of decode steps.
    """
    options = (1 << 20, 2) if report.smoke else (N_BYTES, REPEATS)
    for n_threads in sorted({1, min(2, torch.get_num_threads()), torch.get_num_threads()}):
        bandwidth = measure_read_bandwidth(n_threads, *options)
        title = f"read bandwidth, {n_threads} thread{'s' * (n_threads > 1)}"
        report.add_figures(title, gb_per_s=bandwidth.by_time, gb_per_cpu_s=bandwidth.by_cpu_time)
    for name, timing in timings.items():
        gigabytes = n_steps * n_weights * (1 if "int8" in name else 4) / 1e9
        rates = Bandwidth(1e3 * gigabytes / timing.median, 1e3 * gigabytes / timing.cpu)
        report.add_figures(
            "share of the read bandwidth",
            who=name,
            gb_per_s=rates.by_time,
            bandwidth_share=rates.by_time / bandwidth.by_time,
            cpu_share=rates.by_cpu_time / bandwidth.by_cpu_time,
        )
