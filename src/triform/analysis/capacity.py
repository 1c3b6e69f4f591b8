"""Use cost estimates to find the largest batch that fits into memory, and the operations per training token."""

from __future__ import annotations

from dataclasses import replace

from triform.analysis.costs import Workload, estimate_costs
from triform.config import Config, DataSizes

MEMORY_HEADROOM = 0.2  # share of the device memory that is left for workspaces, temporary buffers and the framework
DEFAULT_BATCH_SIZE = 16


def build_workload(config: Config, length: int, *, bf16: bool, gpu: bool = True, **trainable: int) -> Workload:
    """Return the workload of a training run with texts of `length` tokens.

    Args:
        config: The settings of the run. Without a batch size, `DEFAULT_BATCH_SIZE` is assumed.
        length: Tokens in each text.
        bf16: Whether matrix products are computed in bfloat16.
        gpu: Whether the model is on a GPU, where dropout stores one byte per element.
        **trainable: `trainable` and `adapters` of the workload, if not all parameters are trained.
    """
    train = config.train
    batch_size = max(1, train.batch_tokens // length) if train.batch_tokens else DEFAULT_BATCH_SIZE
    return Workload(
        batch_size=train.batch_size or batch_size,
        length=length,
        optimizer=train.optimizer,
        momentum=train.momentum,
        precision="bf16" if bf16 else "fp32",
        gpu=gpu,
        **trainable,
    )


def find_max_batch_size(config: Config, sizes: DataSizes, workload: Workload, memory_bytes: int) -> int:
    """Return the largest batch size that trains within `memory_bytes`, or 0 if not even one text fits."""

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
    """Return settings for the same number of texts per step in micro-batches of at most `max_batch_size` texts."""
    train = config.train
    name = "batch_size" if train.batch_size else "batch_tokens"
    full_size = train.batch_size or train.batch_tokens
    max_size = max(1, max_batch_size if train.batch_size else max_batch_size * config.data.longest_training_example)
    min_parts = -(-full_size // max_size)
    # Prefer a number of parts that divides the batch; otherwise a step uses a few texts more.
    n_parts = next((n for n in range(min_parts, 2 * min_parts) if full_size % n == 0), min_parts)
    return {f"train.{name}": -(-full_size // n_parts), "train.grad_accumulation": train.grad_accumulation * n_parts}


def training_flops_per_token(config: Config, sizes: DataSizes, length: int) -> float:
    """Return the operations to train on one token, forward and backward, without masked attention."""
    costs_per_text = estimate_costs(config, sizes, Workload(batch_size=1, length=length))
    n_sides = 2 if config.task == "translate" else 1
    return 3 * costs_per_text.needed_forward_flops / (n_sides * length)
