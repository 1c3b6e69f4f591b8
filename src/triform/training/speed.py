"""How fast training goes, between one look and the next."""

from __future__ import annotations

import sys
import time

import torch

from triform.training.learner import Counts


class Meter:
    """Counts tokens and time; `read` gives the rates since it was last read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
            "peak_memory": peak_memory(self.device),
        }
        self.start()
        return found


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: on CUDA by tensors, elsewhere by the process; 0 where that is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in kilobytes
