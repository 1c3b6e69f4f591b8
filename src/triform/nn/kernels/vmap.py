"""Attention of several models at once, for models that are stacked and called through `torch.vmap`.

The models of a stack become rows of the batch, and one call of PyTorch's fused attention computes all of them.
Without this, `vmap` would call the kernel for each model, and would not see that a learned bias needs gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.nn.attention import Attention, ScoreFunction, naive_attention
from triform.nn.kernels.tiling import tiled_sdpa_attention
from triform.nn.masks import AttentionMask


def vmap_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute the attention of a model in a stack, by the fused kernel if it supports the score."""
    if not score_fn.score.is_dot_product or score_fn.relative_position.needs_naive_formula:
        return naive_attention(q, k, v, mask, score_fn, dropout)
    return tiled_sdpa_attention(q, k, v, mask, score_fn, dropout, sdpa=_vmap_sdpa)


def use_vmap_attention(model: nn.Module) -> nn.Module:
    """Let every attention layer of a model use `vmap_attention`, and return the model."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = vmap_attention
    return model


def _vmap_sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    y: Tensor = _VmapSdpa.apply(q, k, v, attn_mask, (dropout_p, is_causal, scale, enable_gqa))  # type: ignore[no-untyped-call]
    return y


class _VmapSdpa(torch.autograd.Function):
    """Fused attention with a `vmap` rule. It is called only inside `vmap`, so `forward` computes nothing."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: tuple[Any, ...]) -> Tensor:
        raise AssertionError("this kernel is only for models in a stack")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing: the function that `vmap` calls has its own gradients."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: Any
    ) -> tuple[Tensor, int]:
        n_models = info.batch_size
        q, k, v = (_move_models_first(x, dim, n_models) for x, dim in zip((q, k, v), in_dims, strict=False))
        if mask is not None and (in_dims[3] is not None or len(mask) > 1):  # else all models and rows share it
            mask = _move_models_first(mask, in_dims[3], n_models)
            mask = mask.expand(-1, q.shape[1], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (N·B, H, T, Dh)
        dropout, is_causal, scale, enable_gqa = options
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return y.view(n_models, -1, *y.shape[1:]), 0


def _move_models_first(x: Tensor, dim: int | None, n_models: int) -> Tensor:
    return x.expand(n_models, *x.shape) if dim is None else x.movedim(dim, 0)
