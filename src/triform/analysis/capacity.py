"""What a device can hold and how much work a token is, from the costs on paper."""

from __future__ import annotations

from dataclasses import replace

from triform.analysis.costs import Workload, estimate_costs
from triform.config import Config, DataSizes

MEMORY_HEADROOM = 0.2  # of a device's memory: for workspaces, passing buffers and the framework


def build_workload(config: Config, length: int, *, bf16: bool, gpu: bool = True) -> Workload:
    """How a run uses its model, with texts of so many tokens."""
    train = config.train
    return Workload(
        batch_size=train.batch_size or max(1, train.batch_tokens // length),
        length=length,
        optimizer=train.optimizer,
        momentum=train.momentum,
        precision="bf16" if bf16 else "fp32",
        gpu=gpu,
    )


def find_max_batch_size(config: Config, sizes: DataSizes, workload: Workload, memory_bytes: int) -> int:
    """The most texts at once that train within so many bytes; 0 where not even one does."""

    def fits(batch_size: int) -> bool:
        needed = estimate_costs(config, sizes, replace(workload, batch_size=batch_size)).training_bytes
        return needed <= (1 - MEMORY_HEADROOM) * memory_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 20:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def split_batch(config: Config, max_batch_size: int) -> dict[str, int]:
    """Settings with which a step learns from as much as before, in batches of at most so many texts."""
    train = config.train
    name = "batch_size" if train.batch_size else "batch_tokens"
    full_size = train.batch_size or train.batch_tokens
    max_size = max(1, max_batch_size if train.batch_size else max_batch_size * config.data.max_len)
    min_parts = -(-full_size // max_size)
    # a number of parts that leaves them equal, if one is near; else a little more is learned from
    n_parts = next((n for n in range(min_parts, 2 * min_parts) if full_size % n == 0), min_parts)
    return {f"train.{name}": -(-full_size // n_parts), "train.grad_accumulation": train.grad_accumulation * n_parts}


def training_flops_per_token(config: Config, sizes: DataSizes, length: int) -> float:
    """Operations of learning from one token: forward and backward, without what masks hide."""
    costs_per_text = estimate_costs(config, sizes, Workload(batch_size=1, length=length))
    n_sides = 2 if config.task == "translate" else 1
    return 3 * costs_per_text.needed_forward_flops / (n_sides * length)
