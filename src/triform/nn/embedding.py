"""The input of a model: token embeddings, position embeddings and, where configured, bigrams and segments."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.norm import NORMS

# Odd 64-bit constants for hashing, as signed numbers: 2^64 / golden ratio, and one of SplitMix64.
HASH_MULTIPLIER, HASH_MIX = 0x9E3779B97F4A7C15 - 2**64, 0x94D049BB133111EB - 2**64


class PositionEmbedding(nn.Module):
    """Adds the position of each token to its vector. The base class adds nothing."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (T) or (B, T) -> (B, T, D)
        return x


class LearnedPositionEmbedding(PositionEmbedding):
    """Adds a learned vector for each position."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)


class SinusoidalPositionEmbedding(PositionEmbedding):
    """Adds sin(p · 10000^(-k/D)) in even dimensions k and cos(p · 10000^(-(k-1)/D)) in odd ones."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.register_buffer("table", build_sinusoidal_table(max_len, d_model), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class MarianPositionEmbedding(SinusoidalPositionEmbedding):
    """The same numbers in Marian's order: all sines first, then all cosines."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = torch.cat([self.table[:, 0::2], self.table[:, 1::2]], dim=1)


POSITION_EMBEDDINGS: dict[str, type[PositionEmbedding]] = {
    "learned": LearnedPositionEmbedding,
    "sinusoidal": SinusoidalPositionEmbedding,
    "sinusoidal_halves": MarianPositionEmbedding,
}


def build_sinusoidal_table(max_len: int, d_model: int) -> Tensor:  # -> (max_len, D)
    """Build the sinusoidal table in float64, so that far positions stay exact."""
    angle = position_angles(max_len, inverse_frequencies(d_model, 10_000.0))  # (T, D/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())


def inverse_frequencies(dim: int, base: float) -> Tensor:  # -> (dim / 2)
    """Return base^(-k/dim) for each even k, in float64."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def position_angles(max_len: int, frequencies: Tensor) -> Tensor:  # -> (max_len, dim / 2)
    """Return position times frequency, in float64."""
    return torch.arange(max_len, dtype=torch.float64)[:, None] * frequencies


class SegmentEmbedding(nn.Module):
    """Adds a learned vector for each segment (BERT's token types); tokens without one are in the first."""

    def __init__(self, n_segments: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_segments, d_model)

    def forward(self, x: Tensor, segments: Tensor | None) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return x + (self.table.weight[0] if segments is None else self.table(segments))


class InputEmbedding(nn.Module):
    """Turn token ids into vectors: token (and bigram) embedding, scaled, plus position and segment, normalised.

    Example:
        >>> embedding = InputEmbedding(ModelConfig(d_model=8, n_heads=2), vocab_size=100, max_len=16)
        >>> embedding(torch.tensor([[1, 2, 3]]), positions=torch.arange(3)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: ModelConfig, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        position_class = POSITION_EMBEDDINGS.get(config.positions, PositionEmbedding)
        self.position_embedding = position_class(max_len, config.d_model)
        if config.bigram_buckets:
            self.bigram_embedding = nn.Embedding(config.bigram_buckets, config.d_model)
        self.bigram_buckets = config.bigram_buckets
        self.segment_embedding = SegmentEmbedding(config.n_segments, config.d_model) if config.n_segments else None
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.norm = NORMS[config.norm](config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed tokens (B, T) at positions (T) or (B, T); returns (B, T, D)."""
        x = self.position_embedding(self.token_vectors(tokens, positions) * self.scale, positions)
        if self.segment_embedding is not None:
            x = self.segment_embedding(x, segments)
        return self.dropout(self.norm(x))

    def token_vectors(self, tokens: Tensor, positions: Tensor) -> Tensor:  # -> (B, T, D)
        """Return the vectors of the tokens, before positions and segments are added."""
        x: Tensor = self.token_embedding(tokens)
        if self.bigram_buckets:
            x = x + self.bigram_embedding(hash_bigrams(tokens, positions, self.bigram_buckets))
        return x


def hash_bigrams(tokens: Tensor, positions: Tensor, n_buckets: int) -> Tensor:  # (B, T) -> (B, T)
    """Hash each token and the one before it into one of `n_buckets`; different pairs may collide.

    Sums and products wrap around at 64 bits. The shift folds the high bits, which the product mixes best, into
    the low ones, so that any number of buckets is filled evenly.
    """
    previous = torch.where(positions == 0, 0, F.pad(tokens[:, :-1], (1, 0)) + 1)
    hashed = (previous * HASH_MULTIPLIER + tokens) * HASH_MIX
    return (hashed ^ (hashed >> 31)) * HASH_MIX % n_buckets
