"""Relative positions: schemes that make attention depend on the distance between query and key.

Position embeddings, which are added to the input, are in `embedding.py`. A distance is the index of the key in the
tensor minus that of the query, so padding on the left and packing change nothing.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.attention import RelativePosition
from triform.nn.embedding import inverse_frequencies, position_angles


def scale_frequencies(frequencies: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Scale rotary frequencies for longer texts than the model was trained on.

    Args:
        frequencies: The frequencies of the rotation.
        scaling: Nothing; one factor that slows all of them down; or, as in Llama 3, (factor, low, high, original
            length): frequencies that turn fewer than `low` times in the original length are `factor` times slower,
            those that turn more than `high` times stay, and those between are interpolated.
    """
    if len(scaling) < 4:
        return frequencies / (scaling[0] if scaling else 1.0)
    factor, low, high, original_len = scaling
    smooth_factor = ((original_len * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return smooth_factor * frequencies + (1 - smooth_factor) * frequencies / factor


class RotaryPosition(RelativePosition):
    """Rotary positions: rotate pairs of coordinates by an angle that grows with the position (arXiv:2104.09864)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()
        frequencies = inverse_frequencies(config.head_dim, config.rotary_base)
        scaled_frequencies = scale_frequencies(frequencies, config.rotary_scaling)
        angle = position_angles(max_len, scaled_frequencies).repeat(1, 2)  # (max_len, Dh)
        dtype = torch.get_default_dtype()
        self.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (table[positions].unsqueeze(-3).to(x.dtype) for table in (self.cos, self.sin))
        low, high = x.chunk(2, dim=-1)  # a pair is one coordinate of each half
        return x * cos + torch.cat([-high, low], dim=-1) * sin


class DistanceBias(RelativePosition):
    """Adds a bias for each head and distance to the score; subclasses define `distance_bias`."""

    has_distance_bias: ClassVar[bool] = True

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:
        return self.distance_bias(distances)[None].to(q.dtype)  # (1, H, T or 1, S)


class AlibiBias(DistanceBias):
    """ALiBi (arXiv:2108.12409): minus slope times distance, with a fixed slope for each head."""

    slopes: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(config.n_heads)), persistent=False)

    def distance_bias(self, distances: Tensor) -> Tensor:
        return -(distances.abs()[..., None] * self.slopes).movedim(-1, 0)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return 2^(-8/n), 2^(-16/n), … for n heads; where n is no power of two, every other slope of 2n is added."""
    n = 1 << (n_heads.bit_length() - 1)
    first = [2.0 ** (-8 * (head + 1) / n) for head in range(n)]
    return first + ([] if n == n_heads else alibi_slopes(2 * n)[::2][: n_heads - n])


class T5Bias(DistanceBias):
    """T5's learned biases (arXiv:1910.10683): one bucket for each near distance, wider buckets for far ones.

    Each layer has a table; in T5 all layers share the table of the first one.
    """

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.n_buckets = causal, config.n_buckets
        self.max_distance = config.resolved_max_distance
        self.table = nn.Embedding(config.n_buckets, config.n_heads)

    def distance_bias(self, distances: Tensor) -> Tensor:
        return self.table(self.bucket_index(distances)).movedim(-1, 0)

    def bucket_index(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance; a causal layer uses all buckets for the past."""
        if self.causal:
            n_buckets, offset, distance = self.n_buckets, distances.new_zeros(()), (-distances).clamp(min=0)
        else:
            n_buckets, distance = self.n_buckets // 2, distances.abs()
            offset = (distances > 0) * n_buckets
        n_exact = n_buckets // 2
        ratio = distance.clamp(min=1).float().div(n_exact).log() / math.log(self.max_distance / n_exact)
        log_bucket = n_exact + (ratio * (n_buckets - n_exact)).long()
        return offset + torch.where(distance < n_exact, distance, log_bucket.clamp(max=n_buckets - 1))


class ShawRelativePosition(RelativePosition):
    """Relative positions of Shaw et al. (arXiv:1803.02155): learned vectors for each distance, shared by the heads.

    One vector is added to the key, another to the value. Distances beyond `max_distance` are clipped.
    """

    needs_naive_formula: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()
        self.max_distance = config.resolved_max_distance
        self.key_table = nn.Embedding(2 * self.max_distance + 1, config.head_dim)
        self.value_table = nn.Embedding(2 * self.max_distance + 1, config.head_dim)

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:
        bias_by_distance = q @ self.key_table.weight.T.to(q.dtype)  # (B, H, T, 2 · max_distance + 1)
        index = self._table_index(distances).expand(*q.shape[:3], distances.shape[-1])
        return bias_by_distance.gather(-1, index)  # (B, H, T, S)

    def value_bias(self, weights: Tensor, distances: Tensor) -> Tensor:
        """Sum the weights of each clipped distance, then weigh its vector, so that no (T, S, Dh) tensor is made."""
        zeros = weights.new_zeros(*weights.shape[:-1], 2 * self.max_distance + 1)
        weight_by_distance = zeros.scatter_add(-1, self._table_index(distances).expand_as(weights), weights)
        return weight_by_distance @ self.value_table.weight.to(weights.dtype)  # (B, H, T, Dh)

    def _table_index(self, distances: Tensor) -> Tensor:
        return distances.clamp(-self.max_distance, self.max_distance) + self.max_distance


RELATIVE_POSITIONS: dict[str, type[RotaryPosition | AlibiBias | ShawRelativePosition | T5Bias]] = {
    "rotary": RotaryPosition,
    "alibi": AlibiBias,
    "relative": ShawRelativePosition,
    "t5": T5Bias,
}


def build_relative_position(config: ModelConfig, max_len: int, *, causal: bool) -> RelativePosition:
    """Build what a layer's self-attention does with distance: nothing, unless `model.positions` is relative."""
    if config.positions not in RELATIVE_POSITIONS:
        return RelativePosition()
    return RELATIVE_POSITIONS[config.positions](config, max_len, causal=causal)
