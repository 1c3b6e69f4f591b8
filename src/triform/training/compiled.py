"""Compiled blocks for long runs of large models, whose time goes into passes over memory between the products.

One block is compiled and serves all layers, so that it takes seconds, not minutes. Only steps of learning use it:
validation comes in other shapes and is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from triform.nn.block import Block, CrossBlock
from triform.nn.half import product_kind

PAYS_BACK = 3e16  # operations of a run from which on a quarter of a minute of compiling is won back
MANY = 4_096  # tokens a step; with fewer, starting kernels takes the time, and a replay has saved that already


def pays(n_parameters: int, n_places: int, n_steps: int) -> bool:
    """Whether a run of so many steps, of so many tokens each, is long enough."""
    return n_places > MANY and 6.0 * n_parameters * n_places * n_steps >= PAYS_BACK


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """Let the model's blocks run compiled in here."""
    blocks = [module for module in model.modules() if isinstance(module, Block | CrossBlock)]
    for block in blocks:
        run = _block if isinstance(block, Block) else _cross_block
        object.__setattr__(block, "forward", partial(_in_product_kind, run(), block))
        if isinstance(block.attention.query, nn.Linear) and isinstance(block.attention.key_value, nn.Linear):
            object.__setattr__(block.attention, "projected", block.attention.projected_together)
    try:
        yield
    finally:
        for block in blocks:
            object.__delattr__(block, "forward")
            vars(block.attention).pop("projected", None)  # adapted layers have no one weight to join


def _in_product_kind(run: Callable[..., Any], block: Block | CrossBlock, x: Tensor, *rest: Any) -> Tensor:
    """With the residual stream in the format of the products: half the bytes to read and write."""
    y: Tensor = run(block, x.to(product_kind(x)), *rest)
    return y


@cache
def _block() -> Callable[..., Any]:
    return torch.compile(Block.forward)


@cache
def _cross_block() -> Callable[..., Any]:
    return torch.compile(CrossBlock.forward)
