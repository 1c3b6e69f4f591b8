"""Other ways to compare a query with a key than the dot product, chosen by `model.attention_score`."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.attention import ContentScore


class CosineScore(ContentScore):
    """Compute t · cos(q, k) with a learned temperature t for each head, which starts at 10."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.log_temperature = nn.Parameter(torch.full((config.n_heads,), math.log(10.0)))

    def prepare_queries(self, q: Tensor) -> Tensor:
        """Return normalised queries times the temperature of their head."""
        temperature = self.log_temperature.exp()[:, None, None]
        return (F.normalize(q, dim=-1) * temperature).to(q.dtype)

    def prepare_keys(self, k: Tensor) -> Tensor:
        """Return normalised keys."""
        return F.normalize(k, dim=-1).to(k.dtype)


class AdditiveScore(ContentScore):
    """Compute w · tanh(q + k), the additive attention of Bahdanau et al. (arXiv:1409.0473)."""

    is_dot_product: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.n_heads, config.head_dim))
        nn.init.normal_(self.weight, std=config.head_dim**-0.5)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        hidden = (q[..., :, None, :] + k[..., None, :, :]).tanh()  # (B, H, T, S, Dh)
        return (hidden @ self.weight.to(q.dtype)[:, None, :, None]).squeeze(-1)  # (B, H, T, S)


SCORES: dict[str, type[ContentScore]] = {
    "scaled_dot": ContentScore,
    "dot": ContentScore,
    "cosine": CosineScore,
    "additive": AdditiveScore,
}
