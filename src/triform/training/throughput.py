"""Measure the speed of training: tokens per second, time per step, memory, and GPU utilisation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

import torch

from triform.io.cache import cache_folder
from triform.io.files import write_text
from triform.training.train_step import StepStats


class ThroughputMeter:
    """Measures the speed of training.

    Args:
        device: The device of the model.
        flops_per_token: Operations per training token, to report GPU utilisation; 0 if unknown.
    """

    def __init__(self, device: torch.device, flops_per_token: float = 0.0) -> None:
        self.device, self.flops_per_token = device, flops_per_token
        self.get_peak_memory: Callable[[], int] = partial(peak_memory, device)
        self.start()

    def start(self) -> None:
        """Restart the clock."""
        self.started_at = time.monotonic()

    def exclude(self, seconds: float) -> None:
        """Exclude time that was not spent on training, such as a validation."""
        self.started_at += seconds

    def read(self, steps: Sequence[StepStats]) -> dict[str, float]:
        """Return the rates of the steps since the clock was started, and restart it."""
        seconds = max(time.monotonic() - self.started_at, 1e-9)
        n_tokens, n_positions = sum(step.n_tokens for step in steps), sum(step.n_positions for step in steps)
        rates = {
            "tokens_per_s": n_tokens / seconds,
            "step_ms": 1e3 * seconds / max(1, len(steps)),
            "real_share": n_tokens / max(1, n_positions),
            "peak_memory": self.get_peak_memory(),
        }
        if self.flops_per_token and self.device.type == "cuda" and (peak_flops := peak_matmul_flops(self.device)):
            rates["utilisation"] = self.flops_per_token * rates["tokens_per_s"] / peak_flops
        self.start()
        return rates


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of tensors on CUDA, else of the process; 0 if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in kilobytes


@cache
def peak_matmul_flops(device: torch.device) -> float:
    """Return the operations per second of a GPU in large bf16 products, which is measured once and cached on disk.

    If there is too little free memory to measure it, the result is 0, and utilisation is not reported.
    """
    key = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    try:
        path = cache_folder() / "matrix-rates.json"
        cached = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, TypeError):  # no home folder, no cache, or a damaged one
        cached = {}
    if isinstance(flops_per_second := cached.get(key), float) and flops_per_second > 0:
        return flops_per_second
    try:
        flops_per_second = _measure_matmul_flops(device)
    except torch.OutOfMemoryError:
        return 0.0
    with suppress(OSError, RuntimeError):  # the next run measures it again
        path = cache_folder() / "matrix-rates.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(cached | {key: flops_per_second}))
    return flops_per_second


def _measure_matmul_flops(device: torch.device, size: int = 8192, repeats: int = 10) -> float:
    """Return the best of a few measurements, which is the speed of an otherwise idle GPU."""
    generator = torch.Generator(device).manual_seed(
        0
    )  # a separate generator, so that dropout does not depend on this measurement
    left, right = (
        torch.randn(size, size, device=device, dtype=torch.bfloat16, generator=generator) for _ in range(2)
    )
    best = 0.0
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        left @ right
        end.record()
        end.synchronize()
        best = max(best, 2 * size**3 / (1e-3 * start.elapsed_time(end)))
    return best
