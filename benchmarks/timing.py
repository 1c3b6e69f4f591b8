"""How things are timed here: contestants take turns, so that a busy moment hits all of them alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], object]
REST = 0.3  # seconds before each turn: threads of the one before still spin for a while, waiting for more


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contestant: the median, and the middle half of all repeats."""

    median: float
    low: float
    high: float
    memory: float  # MiB at the peak above what lay there before; NaN where it cannot be known
    cpu: float  # median time of the processors, all threads and child processes: a busy machine changes it little

    def __str__(self) -> str:
        return f"{self.median:.2f} ms ({self.low:.2f} to {self.high:.2f})"


def race(contestants: Mapping[str, Work], repeats: int, device: torch.device) -> dict[str, Timing]:
    """Each contestant in turn, `repeats` times after one turn that does not count."""
    memory = {name: _peak(work, device) for name, work in contestants.items()}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            seen[name].append(_milliseconds(work, device))
    return {name: _timing(times, memory[name]) for name, times in seen.items()}


def as_graph(work: Work) -> Work:
    """The same work recorded once as a CUDA graph and replayed: what the kernels take, launches aside."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _timing(turns: list[tuple[float, float]], memory: float) -> Timing:
    times = [time for time, _ in turns]
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Timing(statistics.median(times), low, high, memory, statistics.median(cpu for _, cpu in turns))


def _milliseconds(work: Work, device: torch.device) -> tuple[float, float]:
    """On the clock, and of the processors."""
    _wait(device)
    time.sleep(REST)
    start, busy = time.perf_counter(), _busy()
    work()
    _wait(device)
    return 1e3 * (time.perf_counter() - start), 1e3 * (_busy() - busy)


def _busy() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak(work: Work, device: torch.device) -> float:
    """The first turn (compilation, first shapes), then one more to see its memory."""
    work()
    if device.type != "cuda":
        return float("nan")
    _wait(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    _wait(device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
