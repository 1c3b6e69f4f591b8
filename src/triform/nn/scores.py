"""How alike a query and a key are, before the softmax.

Most scores are a dot product of prepared vectors, which is what fused kernels compute; the additive one is not.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig


class AttentionScore(nn.Module):
    """A similarity. Abstract: `Dot` and those that follow it are dot products, `Additive` stands alone."""

    is_dot_product: ClassVar[bool] = True
    scale: float = 1.0

    def forward(self, q: Tensor, k: Tensor) -> Tensor:  # (B, H, T, Dh), (B, H, S, Dh) -> (B, H, T, S)
        return self.prepare_queries(q) @ self.prepare_keys(k).transpose(-2, -1) * self.scale

    def prepare_queries(self, q: Tensor) -> Tensor:
        """Queries as the dot product takes them."""
        return q

    def prepare_keys(self, k: Tensor) -> Tensor:
        return k

    def elements_per_pair(self, head_dim: int) -> int:
        """Numbers that the written-out formula holds for one query and one key of one head."""
        return 1


class DotScore(AttentionScore):
    """q · k: large heads give large scores, and a softmax that is soon sure of itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()


class ScaledDotScore(AttentionScore):
    """q · k / sqrt(head_dim)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(config.head_dim)


class CosineScore(AttentionScore):
    """t · cos(q, k), with a temperature t that each head learns. It starts at 10: cosines alone are too flat."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.full((config.n_heads,), math.log(10.0)))

    def prepare_queries(self, q: Tensor) -> Tensor:
        temperature = self.log_temperature.exp()[:, None, None]
        return (F.normalize(q, dim=-1) * temperature).to(q.dtype)

    def prepare_keys(self, k: Tensor) -> Tensor:
        return F.normalize(k, dim=-1).to(k.dtype)


class AdditiveScore(AttentionScore):
    """w · tanh(q + k), the first attention: a small network compares query and key."""

    is_dot_product: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_heads, config.head_dim))
        nn.init.normal_(self.weight, std=config.head_dim**-0.5)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        hidden = (q[..., :, None, :] + k[..., None, :, :]).tanh()  # (B, H, T, S, Dh)
        return (hidden @ self.weight.to(q.dtype)[:, None, :, None]).squeeze(-1)  # (B, H, T, S)

    def elements_per_pair(self, head_dim: int) -> int:
        return head_dim


SCORES: dict[str, type[AttentionScore]] = {
    "scaled_dot": ScaledDotScore,
    "dot": DotScore,
    "cosine": CosineScore,
    "additive": AdditiveScore,
}
