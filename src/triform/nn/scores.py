"""How alike a query and a key are, before the softmax."""

from __future__ import annotations

import math

from torch import Tensor, nn

from triform.config import ModelConfig


class ScaledDot(nn.Module):
    """q · k / sqrt(head_dim)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(config.head_dim)

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Vectors and a factor whose scaled dot product is this score, as fused kernels want it."""
        return q, k, self.scale


SCORES = {"scaled_dot": ScaledDot}
