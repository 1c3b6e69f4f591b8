"""How alike a query and a key are, before the softmax."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor, nn

from triform.config import ModelConfig


class Score(Protocol):
    """A similarity. `as_dot` is how fused kernels want it; one that is no dot product needs another kernel."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...  # (B, H, T, Dh), (B, H, S, Dh) -> (B, H, T, S)

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]: ...


class ScaledDot(nn.Module):
    """q · k / sqrt(head_dim)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(config.head_dim)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.scale  # (B, H, T, S)

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Vectors and a factor whose scaled dot product is this score."""
        return q, k, self.scale


SCORES = {"scaled_dot": ScaledDot}
