"""Tokens and their positions as vectors."""

from __future__ import annotations

import math

from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.positions import POSITIONS


class Embedding(nn.Module):
    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = POSITIONS[config.positions].absolute(max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:  # (B, T), (T) or (B, T) -> (B, T, D)
        return self.dropout(self.positions(self.tokens(tokens) * self.scale, positions))
