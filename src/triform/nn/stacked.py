"""Attention of many models at once, for models that are stacked and called through `torch.vmap`.

The models of a stack join the rows of the batch, and torch's fused attention takes them all in one call. Left to
itself, `vmap` would call it model by model, and could not tell that a learned bias needs gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.nn.attention import Attention
from triform.nn.kernels import Matching, explicit, fused
from triform.nn.masks import Rule


def stacked(q: Tensor, k: Tensor, v: Tensor, rule: Rule, matching: Matching, dropout: float) -> Tensor:
    """The kernel of a model in a stack: fused where that computes it, else the formula."""
    if not matching.score.is_dot or matching.relation.needs_weights:
        return explicit(q, k, v, rule, matching, dropout)
    return fused(q, k, v, rule, matching, dropout, attention=_attention)


def made_for_stacks(model: nn.Module) -> nn.Module:
    """The same model, its attention computed by `stacked`."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = stacked
    return model


def _attention(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    y: Tensor = _Joined.apply(q, k, v, attn_mask, (dropout_p, is_causal, scale, enable_gqa))  # type: ignore[no-untyped-call]
    return y


class _Joined(torch.autograd.Function):
    """Fused attention with a rule for stacks. It is called only there, so `forward` computes nothing."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: tuple[Any, ...]) -> Tensor:
        raise AssertionError("only models in a stack use this kernel")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: what `vmap` calls has gradients of its own."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Any
    ) -> tuple[Tensor, int]:
        n = info.batch_size
        q, k, v = (_models_first(x, place, n) for x, place in zip((q, k, v), in_dims, strict=False))
        if mask is not None and (in_dims[3] is not None or len(mask) > 1):  # else all models and rows share it
            mask = _models_first(mask, in_dims[3], n)
            mask = mask.expand(-1, q.shape[1], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (N·B, H, T, Dh)
        dropout, causal, scale, shared = how
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=shared
        )
        return y.view(n, -1, *y.shape[1:]), 0


def _models_first(x: Tensor, place: int | None, n: int) -> Tensor:
    return x.expand(n, *x.shape) if place is None else x.movedim(place, 0)
