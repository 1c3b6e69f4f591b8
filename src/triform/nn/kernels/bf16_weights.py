"""Matrix products with bf16 copies of the weights, while the weights themselves stay in float32.

Autocast casts every weight at every use and every gradient back. That is four kernels for each layer, which take
longer than the products themselves when a step has few tokens. Here all weights are cast together, once in each
step, and the gradients of the weights are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: the dtype of autocast if it is on, else that of x."""
    device = x.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # not on the meta device
    return torch.get_autocast_dtype(device) if has_autocast and torch.is_autocast_enabled(device) else x.dtype


def matmul_fp32_accum(left: Tensor, right: Tensor, accum_dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the matrix product in the dtype of its sums, not rounded to the dtype of the inputs."""
    if left.is_cuda and left.dtype != accum_dtype:
        return torch.mm(left, right, out_dtype=accum_dtype)
    return left.to(accum_dtype) @ right.to(accum_dtype)


class Bf16Weights:
    """The bf16 copies of the weights of a model's linear layers."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        self.fp32_tensors = [
            p.detach() for layer in self.layers for p in (layer.weight, layer.bias) if p is not None
        ]
        self.bf16_tensors = [tensor.to(torch.bfloat16) for tensor in self.fp32_tensors]
        self._ones: dict[int, Tensor] = {}

    def ones(self, n: int) -> Tensor:  # -> (1, n)
        """Return ones: a product with them sums over rows, several times faster than the kernel for sums."""
        if n not in self._ones:
            self._ones[n] = self.bf16_tensors[0].new_ones(1, n)
        return self._ones[n]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Update the copies, and let the layers use them inside the `with` block."""
        torch._foreach_copy_(self.bf16_tensors, self.fp32_tensors)
        copies = iter(self.bf16_tensors)
        for layer in self.layers:
            weight, bias = next(copies), next(copies) if layer.bias is not None else None
            object.__setattr__(layer, "forward", partial(_linear, layer, weight, bias, self.ones))
        try:
            yield
        finally:
            for layer in self.layers:
                object.__delattr__(layer, "forward")


def _linear(
    layer: nn.Linear, weight: Tensor, bias: Tensor | None, ones: Callable[[int], Tensor], x: Tensor
) -> Tensor:
    row_of_ones = ones(x.numel() // x.shape[-1])
    inputs = x.to(weight.dtype), layer.weight, layer.bias, weight, bias, row_of_ones
    y: Tensor = _Bf16Linear.apply(*inputs)  # type: ignore[no-untyped-call]
    return y


class _Bf16Linear(torch.autograd.Function):
    """Computes x W + b with the bf16 copies; the gradients go to the float32 weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, fp32_weight: Tensor, fp32_bias: Tensor | None, weight: Tensor, bias: Tensor | None,
        ones: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight, ones)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ones = ctx.saved_tensors
        d_y = grads[0].flatten(0, -2)  # (N, out)
        d_x = (d_y @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = matmul_fp32_accum(d_y.T, x.flatten(0, -2)) if ctx.needs_input_grad[1] else None
        d_bias = matmul_fp32_accum(ones, d_y)[0] if ctx.needs_input_grad[2] else None
        return d_x, d_weight, d_bias, None, None, None
