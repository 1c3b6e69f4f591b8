"""Where a token stands. Some schemes add a vector to its embedding, others change how positions attend.

A scheme is a pair: what the embedding adds (`Absolute`) and what attention does with distance (`Relation`).
Distances are counted in the tensor, key minus query, so that padding on the left and packed rows change nothing.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from triform.config import ModelConfig


class PositionEmbedding(nn.Module):
    """What the embedding adds. This one adds nothing."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (T) or (B, T) -> (B, T, D)
        return x


class LearnedPositionEmbedding(PositionEmbedding):
    """One trained vector a position."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)


class SinusoidalPositionEmbedding(PositionEmbedding):
    """sin(p · 10000^(-k/D)) for even k, cos(p · 10000^(-(k-1)/D)) for odd k."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.register_buffer("table", build_sinusoidal_table(max_len, d_model), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class MarianPositionEmbedding(SinusoidalPositionEmbedding):
    """The same numbers in Marian's order: all sines, then all cosines."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = torch.cat([self.table[:, 0::2], self.table[:, 1::2]], dim=1)


def build_sinusoidal_table(max_len: int, d_model: int) -> Tensor:
    """The table of fixed positions, computed in float64 so that far positions stay exact."""
    angle = position_angles(max_len, inverse_frequencies(d_model, 10_000.0))  # (T, D/2)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (T, D)
    return table.to(torch.get_default_dtype())


def inverse_frequencies(dim: int, base: float) -> Tensor:
    """base^(-k/width) for each even k, in float64."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def scale_frequencies(frequencies: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Frequencies for longer texts than those learned from: all slower, or only the slow ones, as Llama 3 has it.

    What turns fewer than `low` times in the original length goes `factor` times slower, what turns more than
    `high` times stays, and between them one goes over into the other.
    """
    if len(scaling) < 4:
        return frequencies / (scaling[0] if scaling else 1.0)
    factor, low, high, original_len = scaling
    smooth_factor = ((original_len * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return smooth_factor * frequencies + (1 - smooth_factor) * frequencies / factor


def position_angles(max_len: int, frequencies: Tensor) -> Tensor:
    """Position times frequency: (max_len, width / 2) in float64."""
    return torch.arange(max_len, dtype=torch.float64)[:, None] * frequencies


class RelativePosition(nn.Module):
    """What attention does with distance. This one does nothing; it is also cross-attention's, which knows none."""

    has_distance_bias: ClassVar[bool] = False  # adds to a score what depends on head and distance alone
    needs_weights: ClassVar[bool] = False  # has a part in queries or values: only the written-out formula will do

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, H, T, Dh), (T) or (B, T) -> (B, H, T, Dh)
        """Queries or keys as they are at these positions."""
        return x

    def distance_bias(self, distances: Tensor) -> Tensor:  # (N) -> (H, N)
        """What each distance adds to each head's scores, where `by_distance`."""
        raise NotImplementedError

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, Dh), (T + S - 1) -> (B or 1, H, T, S)
        """What is added to the scores of queries; `distances` run from the last query's first key on.

        Or they are a table: (1, S) where all queries stand at one place, (T, S) while a graph is written.
        """
        return q.new_zeros(())

    def value_bias(self, weights: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, S) -> (B, H, T, Dh)
        """What is added to the mean of the values."""
        return weights.new_zeros(())


def expand_toeplitz(x: Tensor, t: int) -> Tensor:  # (..., T + S - 1) -> (..., T, S)
    """One number a distance, laid out along the diagonals of a (T, S) table."""
    return x.unfold(-1, x.shape[-1] - t + 1, 1).flip(-2)


def expand_distances(x: Tensor, distances: Tensor, t: int) -> Tensor:  # (..., N) -> (..., T or 1, S)
    """One number a distance as a table: along its diagonals or, where distances are a table, as they stand."""
    return expand_toeplitz(x, t) if distances.ndim == 1 else x.reshape(*x.shape[:-1], *distances.shape)


class RotaryPosition(RelativePosition):
    """Turns pairs of coordinates by an angle that grows with position: q · k then depends on distance."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        frequencies = scale_frequencies(
            inverse_frequencies(config.head_dim, config.rotary_base), config.rotary_scaling
        )
        angle = position_angles(max_len, frequencies).repeat(1, 2)  # (max_len, Dh)
        dtype = torch.get_default_dtype()
        self.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (table[positions].unsqueeze(-3).to(x.dtype) for table in (self.cos, self.sin))
        low, high = x.chunk(2, dim=-1)  # a pair is one coordinate of each half
        return x * cos + torch.cat([-high, low], dim=-1) * sin


class DistanceBias(RelativePosition):
    """A number a head and distance is added to the score. Abstract: says which in `at`."""

    has_distance_bias: ClassVar[bool] = True

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:
        bias = self.distance_bias(distances.flatten())  # (H, N)
        return expand_distances(bias, distances, q.shape[-2])[None].to(q.dtype)  # (1, H, T or 1, S)


class AlibiBias(DistanceBias):
    """Minus slope times distance; each head has its own slope, from steep (near sight) to flat."""

    slopes: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(config.n_heads)), persistent=False)

    def distance_bias(self, distances: Tensor) -> Tensor:
        return -self.slopes[:, None] * distances.abs()


def alibi_slopes(n_heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... for n heads; where n is no power of two, every other one of 2n fills up."""
    n = 1 << (n_heads.bit_length() - 1)
    first = [2.0 ** (-8 * (head + 1) / n) for head in range(n)]
    return first + ([] if n == n_heads else alibi_slopes(2 * n)[::2][: n_heads - n])


class T5Bias(DistanceBias):
    """T5's learned biases: near distances have a bucket each, far ones share logarithmically wider ones.

    Each layer has a table of its own; T5 lets all layers share the first one's.
    """

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.causal, self.n_buckets = causal, config.n_buckets
        self.max_distance = config.resolved_max_distance
        self.table = nn.Embedding(config.n_buckets, config.n_heads)

    def distance_bias(self, distances: Tensor) -> Tensor:
        return self.table(self.bucket_index(distances)).T  # (H, N)

    def bucket_index(self, distances: Tensor) -> Tensor:
        """Which bucket a distance falls into; causal reading leaves all buckets to the past."""
        if self.causal:
            n_buckets, offset, distance = self.n_buckets, distances.new_zeros(()), (-distances).clamp(min=0)
        else:
            n_buckets, offset, distance = (
                self.n_buckets // 2,
                (distances > 0) * (self.n_buckets // 2),
                distances.abs(),
            )
        n_exact = n_buckets // 2
        ratio = distance.clamp(min=1).float().div(n_exact).log() / math.log(self.max_distance / n_exact)
        log_bucket = n_exact + (ratio * (n_buckets - n_exact)).long()
        return offset + torch.where(distance < n_exact, distance, log_bucket.clamp(max=n_buckets - 1))


class ShawRelativePosition(RelativePosition):
    """Shaw's relative positions: a learned vector for each distance joins the key, another the value.

    Beyond `max_distance` all distances are one. Heads share the vectors.
    """

    needs_weights: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.max_distance = config.resolved_max_distance
        self.key_table = nn.Embedding(2 * self.max_distance + 1, config.head_dim)
        self.value_table = nn.Embedding(2 * self.max_distance + 1, config.head_dim)

    def score_bias(self, q: Tensor, distances: Tensor) -> Tensor:
        bias_by_distance = q @ self.key_table.weight.T.to(q.dtype)  # (B, H, T, 2 · far + 1)
        distance_index = self._distance_index(distances, q.shape[-2])
        return bias_by_distance.gather(
            -1, distance_index.expand(*q.shape[:3], distance_index.shape[-1])
        )  # (B, H, T, S)

    def value_bias(self, weights: Tensor, distances: Tensor) -> Tensor:
        """Weights of keys at one clipped distance add up, then weigh its vector: no (T, S, Dh) is made."""
        distance_index = self._distance_index(distances, weights.shape[-2]).expand_as(weights)
        weight_by_distance = weights.new_zeros(*weights.shape[:-1], 2 * self.max_distance + 1).scatter_add(
            -1, distance_index, weights
        )
        return weight_by_distance @ self.value_table.weight.to(weights.dtype)  # (B, H, T, Dh)

    def _distance_index(self, distances: Tensor, t: int) -> Tensor:  # (T + S - 1) -> (T or 1, S)
        return expand_distances(
            distances.flatten().clamp(-self.max_distance, self.max_distance) + self.max_distance, distances, t
        )


class PositionScheme(NamedTuple):
    """What `model.positions` stands for: a vector in the embedding, a relation in self-attention, or neither."""

    embedding: type[PositionEmbedding] = PositionEmbedding
    relative: type[RelativePosition] = RelativePosition


POSITIONS: dict[str, PositionScheme] = {
    "learned": PositionScheme(embedding=LearnedPositionEmbedding),
    "sinusoidal": PositionScheme(embedding=SinusoidalPositionEmbedding),
    "sinusoidal_halves": PositionScheme(embedding=MarianPositionEmbedding),
    "rotary": PositionScheme(relative=RotaryPosition),
    "alibi": PositionScheme(relative=AlibiBias),
    "relative": PositionScheme(relative=ShawRelativePosition),
    "t5": PositionScheme(relative=T5Bias),
    "none": PositionScheme(),
}


def build_relative_position(config: ModelConfig, max_len: int, *, causal: bool) -> RelativePosition:
    """What a layer's self-attention does with distance."""
    return POSITIONS[config.positions].relative(config, max_len, causal=causal)
