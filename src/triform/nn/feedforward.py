"""The feed-forward sublayer: two linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.initialisation import FusedLinear, ResidualLinear


class SwiGLU(nn.Module):
    """Compute silu(gate) · value, where gate and value are the halves of the input."""

    def forward(self, x: Tensor) -> Tensor:  # (..., 2F) -> (..., F)
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class Activation(NamedTuple):
    """How to build an activation, and how many inputs it needs for one output."""

    build: Callable[[], nn.Module]
    n_inputs: int = 1


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(nn.ReLU),
    "gelu": Activation(nn.GELU),
    "gelu_tanh": Activation(partial(nn.GELU, approximate="tanh")),
    "silu": Activation(nn.SiLU),
    "swiglu": Activation(SwiGLU, n_inputs=2),
}


class FeedForward(nn.Module):
    """Project to `d_ff`, apply the activation, project back to `d_model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        build_activation, n_inputs = ACTIVATIONS[config.activation]
        self.up_proj = FusedLinear(config.d_model, config.d_ff, n_projections=n_inputs, bias=config.bias)
        self.activation = build_activation()
        self.down_proj = ResidualLinear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        return self.down_proj(self.activation(self.up_proj(x)))
