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
HASH_MULTIPLIER, HASH_MIX = 0x9E3779B97F4A7C15 - 2**64, 0x94D049BB133111EB - 2**64


class NoSegmentEmbedding(nn.Module):
    """All text is of one kind."""

    def forward(self, x: Tensor, segments: Tensor | None) -> Tensor:
        return x


class SegmentEmbedding(NoSegmentEmbedding):
    """A trained vector for each kind of text; what is not said is of the first."""

    def __init__(self, n_segments: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_segments, d_model)

    def forward(self, x: Tensor, segments: Tensor | None) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return x + (self.table.weight[0] if segments is None else self.table(segments))


class InputEmbedding(nn.Module):
    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        self.position_embedding = POSITIONS[config.positions].embedding(max_len, config.d_model)
        if config.bigram_buckets:
            self.bigram_embedding = nn.Embedding(config.bigram_buckets, config.d_model)
        self.bigram_buckets = config.bigram_buckets
        self.segment_embedding = (
            SegmentEmbedding(config.n_segments, config.d_model) if config.n_segments else NoSegmentEmbedding()
        )
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.norm = NORMS[config.norm](config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None
    ) -> Tensor:  # (B, T), (T) or (B, T) -> (B, T, D)
        x = self.position_embedding(self.token_vectors(tokens, positions) * self.scale, positions)
        return self.dropout(self.norm(self.segment_embedding(x, segments)))

    def token_vectors(self, tokens: Tensor, positions: Tensor) -> Tensor:  # -> (B, T, D)
        """What the tokens are, wherever they stand."""
        x: Tensor = self.token_embedding(tokens)
        return (
            x + self.bigram_embedding(hash_bigrams(tokens, positions, self.bigram_buckets))
            if self.bigram_buckets
            else x
        )


def hash_bigrams(tokens: Tensor, positions: Tensor, n_buckets: int) -> Tensor:  # (B, T) -> (B, T)
    """For each token and the one before it a row of a table of n, as if drawn: pairs may share one by chance.

    Sums and products wrap around at 64 bits; the shift brings what the product did to the high bits down again,
    so that no n, however round, sees a pattern.
    """
    previous = torch.where(positions == 0, 0, F.pad(tokens[:, :-1], (1, 0)) + 1)
    hashed = (previous * HASH_MULTIPLIER + tokens) * HASH_MIX
    return (hashed ^ (hashed >> 31)) * HASH_MIX % n_buckets
