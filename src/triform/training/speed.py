"""How fast training goes, between one look and the next."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import torch

from triform.data.cache import cache_folder
from triform.io.files import write_text
from triform.training.learner import Counts


class Meter:
    """Counts tokens and time; `read` gives the rates since it was last read."""

    def __init__(self, device: torch.device, operations: float = 0.0) -> None:
        """`operations` is the work of learning from one token; 0: unknown."""
        self.device, self.operations = device, operations
        self.memory: Callable[[], int] = partial(peak_memory, device)
        self.start()

    def start(self) -> None:
        self.since, self.steps, self.tokens, self.places = time.monotonic(), 0, 0, 0

    def count(self, counts: Counts) -> None:
        self.steps += 1
        self.tokens += counts.n_tokens
        self.places += counts.n_places

    def leave_out(self, seconds: float) -> None:
        """Time that was spent on something else than training."""
        self.since += seconds

    def read(self) -> dict[str, float]:
        seconds = max(time.monotonic() - self.since, 1e-9)
        found = {
            "tokens_per_s": self.tokens / seconds,
            "step_ms": 1e3 * seconds / max(1, self.steps),
            "real_share": self.tokens / max(1, self.places),
            "peak_memory": self.memory(),
        }
        if self.operations and self.device.type == "cuda" and (rate := matrix_rate(self.device)):
            found["utilisation"] = self.operations * found["tokens_per_s"] / rate
        self.start()
        return found


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
def matrix_rate(device: torch.device) -> float:
    """Operations a second of this card in large bf16 products: measured once, then remembered on disk.

    0 where the model leaves no room to measure it: training goes on without.
    """
    name = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    try:
        path = cache_folder() / "matrix-rates.json"
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, TypeError):  # no home, nothing there, or not what it was
        known = {}
    if isinstance(rate := known.get(name), float) and rate > 0:
        return rate
    try:
        rate = _measured_rate(device)
    except torch.OutOfMemoryError:
        return 0.0
    with suppress(OSError, RuntimeError):  # it is measured again next time
        path = cache_folder() / "matrix-rates.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {name: rate}))
    return rate


def _measured_rate(device: torch.device, size: int = 8192, times: int = 10) -> float:
    """The best of a few tries: what the card can do when nothing else goes on."""
    chance = torch.Generator(device).manual_seed(0)  # of its own: dropout must not notice that this was measured
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16, generator=chance) for _ in range(2))
    best = 0.0
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        left @ right
        end.record()
        end.synchronize()
        best = max(best, 2 * size**3 / (1e-3 * start.elapsed_time(end)))
    return best
