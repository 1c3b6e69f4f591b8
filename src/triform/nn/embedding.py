"""Tokens and their positions as vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.norm import NORMS
from triform.nn.positions import POSITIONS

# Odd numbers whose bits look drawn (2^64 over the golden ratio, and one from a published mixer), as signed ones.
SPREAD, STIR = 0x9E3779B97F4A7C15 - 2**64, 0x94D049BB133111EB - 2**64


class NoSegments(nn.Module):
    """All text is of one kind."""

    def forward(self, x: Tensor, segments: Tensor | None) -> Tensor:
        return x


class Segments(NoSegments):
    """A trained vector for each kind of text; what is not said is of the first."""

    def __init__(self, number: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(number, d_model)

    def forward(self, x: Tensor, segments: Tensor | None) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return x + (self.table.weight[0] if segments is None else self.table(segments))


class Embedding(nn.Module):
    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = POSITIONS[config.positions].absolute(max_len, config.d_model)
        if config.pair_rows:
            self.pairs = nn.Embedding(config.pair_rows, config.d_model)
        self.n_pairs = config.pair_rows
        self.segments = Segments(config.segments, config.d_model) if config.segments else NoSegments()
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.norm = NORMS[config.norm](config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None
    ) -> Tensor:  # (B, T), (T) or (B, T) -> (B, T, D)
        x = self.positions(self.vectors(tokens, positions) * self.scale, positions)
        return self.dropout(self.norm(self.segments(x, segments)))

    def vectors(self, tokens: Tensor, positions: Tensor) -> Tensor:  # -> (B, T, D)
        """What the tokens are, wherever they stand."""
        x: Tensor = self.tokens(tokens)
        return x + self.pairs(pair_rows(tokens, positions, self.n_pairs)) if self.n_pairs else x


def pair_rows(tokens: Tensor, positions: Tensor, n: int) -> Tensor:  # (B, T) -> (B, T)
    """For each token and the one before it a row of a table of n, as if drawn: pairs may share one by chance.

    Sums and products wrap around at 64 bits; the shift brings what the product did to the high bits down again,
    so that no n, however round, sees a pattern.
    """
    before = torch.where(positions == 0, 0, F.pad(tokens[:, :-1], (1, 0)) + 1)
    mixed = (before * SPREAD + tokens) * STIR
    return (mixed ^ (mixed >> 31)) * STIR % n
