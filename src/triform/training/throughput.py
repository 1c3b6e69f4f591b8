"""How fast training goes, between one look and the next."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import torch

from triform.data.token_cache import cache_folder
from triform.io.files import write_text
from triform.training.train_step import StepStats


class ThroughputMeter:
    """Counts tokens and time; `read` gives the rates since it was last read."""

    def __init__(self, device: torch.device, flops_per_token: float = 0.0) -> None:
        """`operations` is the work of learning from one token; 0: unknown."""
        self.device, self.flops_per_token = device, flops_per_token
        self.get_peak_memory: Callable[[], int] = partial(peak_memory, device)
        self.start()

    def start(self) -> None:
        self.started_at, self.n_steps, self.n_tokens, self.n_positions = time.monotonic(), 0, 0, 0

    def add(self, stats: StepStats) -> None:
        self.n_steps += 1
        self.n_tokens += stats.n_tokens
        self.n_positions += stats.n_positions

    def exclude(self, seconds: float) -> None:
        """Time that was spent on something else than training."""
        self.started_at += seconds

    def read(self) -> dict[str, float]:
        seconds = max(time.monotonic() - self.started_at, 1e-9)
        rates = {
            "tokens_per_s": self.n_tokens / seconds,
            "step_ms": 1e3 * seconds / max(1, self.n_steps),
            "real_share": self.n_tokens / max(1, self.n_positions),
            "peak_memory": self.get_peak_memory(),
        }
        if self.flops_per_token and self.device.type == "cuda" and (peak_flops := peak_matmul_flops(self.device)):
            rates["utilisation"] = self.flops_per_token * rates["tokens_per_s"] / peak_flops
        self.start()
        return rates


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: on CUDA by tensors, elsewhere by the process; 0 where that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in kilobytes


@cache
def peak_matmul_flops(device: torch.device) -> float:
    """Operations a second of this card in large bf16 products: measured once, then remembered on disk.

    0 where the model leaves no room to measure it: training goes on without.
    """
    key = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    try:
        path = cache_folder() / "matrix-rates.json"
        cached = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, TypeError):  # no home, nothing there, or not what it was
        cached = {}
    if isinstance(flops_per_second := cached.get(key), float) and flops_per_second > 0:
        return flops_per_second
    try:
        flops_per_second = _measure_matmul_flops(device)
    except torch.OutOfMemoryError:
        return 0.0
    with suppress(OSError, RuntimeError):  # it is measured again next time
        path = cache_folder() / "matrix-rates.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(cached | {key: flops_per_second}))
    return flops_per_second


def _measure_matmul_flops(device: torch.device, size: int = 8192, repeats: int = 10) -> float:
    """The best of a few tries: what the card can do when nothing else goes on."""
    generator = torch.Generator(device).manual_seed(0)  # of its own: dropout must not notice that this was measured
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
