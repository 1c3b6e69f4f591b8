"""Compile Transformer blocks with torch.compile, for long runs of large models.

All layers share one compiled block, so compiling takes seconds and not minutes. Only training steps use it, because
validation has other batch shapes and is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.io.cache import use_compiler_cache
from triform.nn.attention import Attention
from triform.nn.block import Block, CrossBlock
from triform.nn.kernels.bf16_weights import matmul_dtype

MIN_RUN_FLOPS = 3e16  # shorter runs save less than the 15 seconds of compiling
MIN_CACHED_RUN_FLOPS = 1e16  # the same if compiled code is in the cache
MIN_TOKENS_PER_STEP = 4_096  # smaller steps are limited by kernel launches, which CUDA graphs already remove


def should_compile(
    n_parameters: int, n_positions: int, n_steps: int, is_cached: Callable[[], bool] = lambda: False
) -> bool:
    """Return whether a run is long enough, and its steps large enough, to gain from compiling.

    Args:
        n_parameters: The parameters of the model.
        n_positions: The tokens of a step, padding included.
        n_steps: The steps of the run.
        is_cached: Says whether compiled code for these blocks and batches is in the cache. It is asked only about
            runs for which it matters.
    """
    flops = 6.0 * n_parameters * n_positions * n_steps
    if n_positions <= MIN_TOKENS_PER_STEP or flops < MIN_CACHED_RUN_FLOPS:
        return False
    return flops >= MIN_RUN_FLOPS or is_cached()


@contextmanager
def compiled_blocks(model: nn.Module) -> Iterator[None]:
    """Use compiled blocks in the model inside the `with` block."""
    blocks = [module for module in model.modules() if isinstance(module, Block | CrossBlock)]
    for block in blocks:
        compile_forward = _compiled_block_forward if isinstance(block, Block) else _compiled_cross_block_forward
        object.__setattr__(block, "forward", partial(_run_in_product_dtype, compile_forward(), block))
        if isinstance(block.attn.q_proj, nn.Linear) and isinstance(block.attn.kv_proj, nn.Linear):
            object.__setattr__(block.attn, "project", partial(_project_fused, block.attn))
    try:
        yield
    finally:
        for block in blocks:
            object.__delattr__(block, "forward")
            vars(block.attn).pop("project", None)  # LoRA layers have no single weight to concatenate


def _project_fused(attention: Attention, x: Tensor, source: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Project queries, keys and values in one product. When compiled, concatenating the weights is free."""
    layers = attention.q_proj, attention.kv_proj
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers]) if attention.q_proj.bias is not None else None
    queries, kv = F.linear(x, weight, bias).tensor_split([attention.q_proj.out_features], dim=-1)
    return queries, lambda: kv


def _run_in_product_dtype(forward: Callable[..., Any], block: Block | CrossBlock, x: Tensor, *args: Any) -> Tensor:
    """Keep the residual stream in the dtype of matrix products, which halves memory traffic under autocast."""
    y: Tensor = forward(block, x.to(matmul_dtype(x)), *args)
    return y


@cache
def _compiled_block_forward() -> Callable[..., Any]:
    use_compiler_cache()
    return torch.compile(Block.forward)


@cache
def _compiled_cross_block_forward() -> Callable[..., Any]:
    use_compiler_cache()
    return torch.compile(CrossBlock.forward)
