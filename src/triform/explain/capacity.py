"""What a device can hold and how much work a token is, from the costs on paper."""

from __future__ import annotations

from dataclasses import replace

from triform.config import Config, Sizes
from triform.explain.costs import Use, costs

LEFT_FREE = 0.2  # of a device's memory: for workspaces, passing buffers and the framework


def use_of(config: Config, length: int, *, half: bool, gpu: bool = True) -> Use:
    """How a run uses its model, with texts of so many tokens."""
    train = config.train
    return Use(
        batch_size=train.batch_size or max(1, train.batch_tokens // length),
        length=length,
        optimizer=train.optimizer,
        momentum=train.momentum,
        precision="bf16" if half else "fp32",
        gpu=gpu,
    )


def fitting_batch(config: Config, sizes: Sizes, use: Use, memory: int) -> int:
    """The most texts at once that train within so many bytes; 0 where not even one does."""

    def fits(batch_size: int) -> bool:
        needed = costs(config, sizes, replace(use, batch_size=batch_size)).training_bytes
        return needed <= (1 - LEFT_FREE) * memory

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 20:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smaller_batches(config: Config, most: int) -> dict[str, int]:
    """Settings with which a step learns from as much as before, in batches of at most so many texts."""
    train = config.train
    name = "batch_size" if train.batch_size else "batch_tokens"
    whole = train.batch_size or train.batch_tokens
    allowed = max(1, most if train.batch_size else most * config.data.max_len)
    fewest = -(-whole // allowed)
    # a number of parts that leaves them equal, if one is near; else a little more is learned from
    parts = next((n for n in range(fewest, 2 * fewest) if whole % n == 0), fewest)
    return {f"train.{name}": -(-whole // parts), "train.accumulate": train.accumulate * parts}


def operations_a_token(config: Config, sizes: Sizes, length: int) -> float:
    """Operations of learning from one token: forward and backward, without what masks hide."""
    found = costs(config, sizes, Use(batch_size=1, length=length))
    sides = 2 if config.task == "translate" else 1
    return 3 * found.forward_needed / (sides * length)
