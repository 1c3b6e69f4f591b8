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
from triform.nn.kernels.bf16_weights import matmul_dtype

MIN_RUN_FLOPS = 3e16  # operations of a run from which on a quarter of a minute of compiling is won back
MIN_TOKENS_PER_STEP = (
    4_096  # tokens a step; with fewer, starting kernels takes the time, and a replay has saved that already
)


def is_worth_compiling(n_parameters: int, n_positions: int, n_steps: int) -> bool:
    """Whether a run of so many steps, of so many tokens each, is long enough."""
    return n_positions > MIN_TOKENS_PER_STEP and 6.0 * n_parameters * n_positions * n_steps >= MIN_RUN_FLOPS


@contextmanager
def compiled_blocks(model: nn.Module) -> Iterator[None]:
    """Let the model's blocks run compiled in here."""
    blocks = [module for module in model.modules() if isinstance(module, Block | CrossBlock)]
    for block in blocks:
        compile_forward = _compiled_block_forward if isinstance(block, Block) else _compiled_cross_block_forward
        object.__setattr__(block, "forward", partial(_run_in_product_dtype, compile_forward(), block))
        if isinstance(block.attn.q_proj, nn.Linear) and isinstance(block.attn.kv_proj, nn.Linear):
            object.__setattr__(block.attn, "project", block.attn.project_fused)
    try:
        yield
    finally:
        for block in blocks:
            object.__delattr__(block, "forward")
            vars(block.attn).pop("project", None)  # adapted layers have no one weight to join


def _run_in_product_dtype(forward: Callable[..., Any], block: Block | CrossBlock, x: Tensor, *args: Any) -> Tensor:
    """With the residual stream in the format of the products: half the bytes to read and write."""
    y: Tensor = forward(block, x.to(matmul_dtype(x)), *args)
    return y


@cache
def _compiled_block_forward() -> Callable[..., Any]:
    return torch.compile(Block.forward)


@cache
def _compiled_cross_block_forward() -> Callable[..., Any]:
    return torch.compile(CrossBlock.forward)
