"""Time contestants in turns, so that a busy moment of the machine affects all of them."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

TimedFn = Callable[[], object]
PAUSE_SECONDS = 0.3  # seconds before each turn, because threads of the previous one may still be spinning


@dataclass(frozen=True)
class Timing:
    """The times of one contestant in milliseconds: the median and the middle half of all repeats."""

    median: float
    low: float
    high: float
    memory: float  # peak MiB above the memory in use before; NaN if unknown
    cpu: float  # median processor time of all threads and child processes, which a busy machine hardly changes

    def __str__(self) -> str:
        return f"{self.median:.2f} ms ({self.low:.2f} to {self.high:.2f})"


def time_in_turns(contestants: Mapping[str, TimedFn], repeats: int, device: torch.device) -> dict[str, Timing]:
    """Time each contestant in turn, `repeats` times after one warm-up turn."""
    memory = {name: _measure_peak_memory(run, device) for name, run in contestants.items()}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            turns[name].append(_time_once(run, device))
    return {name: _summarise_turns(times, memory[name]) for name, times in turns.items()}


def capture_graph(run: TimedFn) -> TimedFn:
    """Capture the work as a CUDA graph, whose replay measures the kernels without their launches."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _summarise_turns(turns: list[tuple[float, float]], memory: float) -> Timing:
    milliseconds = [time for time, _ in turns]
    low, _, high = statistics.quantiles(milliseconds, n=4) if len(milliseconds) > 1 else (milliseconds[0],) * 3
    return Timing(statistics.median(milliseconds), low, high, memory, statistics.median(cpu for _, cpu in turns))


def _time_once(run: TimedFn, device: torch.device) -> tuple[float, float]:
    """Return the wall time and the processor time of one call."""
    _synchronize(device)
    time.sleep(PAUSE_SECONDS)
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    run()
    _synchronize(device)
    return 1e3 * (time.perf_counter() - start), 1e3 * (_cpu_seconds() - cpu_start)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _measure_peak_memory(run: TimedFn, device: torch.device) -> float:
    """Run the warm-up turn (compilation, first shapes), and one more to measure memory."""
    run()
    if device.type != "cuda":
        return float("nan")
    _synchronize(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    _synchronize(device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
