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


class Absolute(nn.Module):
    """What the embedding adds. This one adds nothing."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, T, D), (T) or (B, T) -> (B, T, D)
        return x


class Learned(Absolute):
    """One trained vector a position."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)


class Sinusoidal(Absolute):
    """sin(p · 10000^(-k/D)) for even k, cos(p · 10000^(-(k-1)/D)) for odd k."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.register_buffer("table", sinusoids(max_len, d_model), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class SinusoidalHalves(Sinusoidal):
    """The same numbers in Marian's order: all sines, then all cosines."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__(max_len, d_model)
        self.table = torch.cat([self.table[:, 0::2], self.table[:, 1::2]], dim=1)


def sinusoids(max_len: int, d_model: int) -> Tensor:
    """The table of fixed positions, computed in float64 so that far positions stay exact."""
    angle = angles(max_len, frequencies(d_model, 10_000.0))  # (T, D/2)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (T, D)
    return table.to(torch.get_default_dtype())


def frequencies(width: int, base: float) -> Tensor:
    """base^(-k/width) for each even k, in float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def scaled(turns: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Frequencies for longer texts than those learned from: all slower, or only the slow ones, as Llama 3 has it.

    What turns fewer than `low` times in the original length goes `factor` times slower, what turns more than
    `high` times stays, and between them one goes over into the other.
    """
    if len(scaling) < 4:
        return turns / (scaling[0] if scaling else 1.0)
    factor, low, high, original = scaling
    stays = ((original * turns / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return stays * turns + (1 - stays) * turns / factor


def angles(max_len: int, turns: Tensor) -> Tensor:
    """Position times frequency: (max_len, width / 2) in float64."""
    return torch.arange(max_len, dtype=torch.float64)[:, None] * turns


class Relation(nn.Module):
    """What attention does with distance. This one does nothing; it is also cross-attention's, which knows none."""

    by_distance: ClassVar[bool] = False  # adds to a score what depends on head and distance alone
    needs_weights: ClassVar[bool] = False  # has a part in queries or values: only the written-out formula will do

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__()

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, H, T, Dh), (T) or (B, T) -> (B, H, T, Dh)
        """Queries or keys as they are at these positions."""
        return x

    def at(self, distances: Tensor) -> Tensor:  # (N) -> (H, N)
        """What each distance adds to each head's scores, where `by_distance`."""
        raise NotImplementedError

    def bias(self, q: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, Dh), (T + S - 1) -> (B or 1, H, T, S)
        """What is added to the scores of queries; `distances` run from the last query's first key on.

        Or they are a table: (1, S) where all queries stand at one place, (T, S) while a graph is written.
        """
        return q.new_zeros(())

    def values(self, weights: Tensor, distances: Tensor) -> Tensor:  # (B, H, T, S) -> (B, H, T, Dh)
        """What is added to the mean of the values."""
        return weights.new_zeros(())


def by_diagonal(x: Tensor, t: int) -> Tensor:  # (..., T + S - 1) -> (..., T, S)
    """One number a distance, laid out along the diagonals of a (T, S) table."""
    return x.unfold(-1, x.shape[-1] - t + 1, 1).flip(-2)


def laid_out(x: Tensor, distances: Tensor, t: int) -> Tensor:  # (..., N) -> (..., T or 1, S)
    """One number a distance as a table: along its diagonals or, where distances are a table, as they stand."""
    return by_diagonal(x, t) if distances.ndim == 1 else x.reshape(*x.shape[:-1], *distances.shape)


class Rotary(Relation):
    """Turns pairs of coordinates by an angle that grows with position: q · k then depends on distance."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        turns = scaled(frequencies(config.head_dim, config.rotary_base), config.rotary_scaling)
        angle = angles(max_len, turns).repeat(1, 2)  # (max_len, Dh)
        kind = torch.get_default_dtype()
        self.register_buffer("cos", angle.cos().to(kind), persistent=False)
        self.register_buffer("sin", angle.sin().to(kind), persistent=False)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (table[positions].unsqueeze(-3).to(x.dtype) for table in (self.cos, self.sin))
        low, high = x.chunk(2, dim=-1)  # a pair is one coordinate of each half
        return x * cos + torch.cat([-high, low], dim=-1) * sin


class ByDistance(Relation):
    """A number a head and distance is added to the score. Abstract: says which in `at`."""

    by_distance: ClassVar[bool] = True

    def bias(self, q: Tensor, distances: Tensor) -> Tensor:
        told = self.at(distances.flatten())  # (H, N)
        return laid_out(told, distances, q.shape[-2])[None].to(q.dtype)  # (1, H, T or 1, S)


class Alibi(ByDistance):
    """Minus slope times distance; each head has its own slope, from steep (near sight) to flat."""

    slopes: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.register_buffer("slopes", torch.tensor(slopes(config.n_heads)), persistent=False)

    def at(self, distances: Tensor) -> Tensor:
        return -self.slopes[:, None] * distances.abs()


def slopes(n_heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... for n heads; where n is no power of two, every other one of 2n fills up."""
    n = 1 << (n_heads.bit_length() - 1)
    first = [2.0 ** (-8 * (head + 1) / n) for head in range(n)]
    return first + ([] if n == n_heads else slopes(2 * n)[::2][: n_heads - n])


class Buckets(ByDistance):
    """T5's learned biases: near distances have a bucket each, far ones share logarithmically wider ones.

    Each layer has a table of its own; T5 lets all layers share the first one's.
    """

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.causal, self.n_buckets = causal, config.n_buckets
        self.max_distance = config.max_distance_or_published
        self.table = nn.Embedding(config.n_buckets, config.n_heads)

    def at(self, distances: Tensor) -> Tensor:
        return self.table(self.bucket(distances)).T  # (H, N)

    def bucket(self, distances: Tensor) -> Tensor:
        """Which bucket a distance falls into; causal reading leaves all buckets to the past."""
        if self.causal:
            number, side, far = self.n_buckets, distances.new_zeros(()), (-distances).clamp(min=0)
        else:
            number, side, far = self.n_buckets // 2, (distances > 0) * (self.n_buckets // 2), distances.abs()
        exact = number // 2
        ratio = far.clamp(min=1).float().div(exact).log() / math.log(self.max_distance / exact)
        wide = exact + (ratio * (number - exact)).long()
        return side + torch.where(far < exact, far, wide.clamp(max=number - 1))


class Relative(Relation):
    """Shaw's relative positions: a learned vector for each distance joins the key, another the value.

    Beyond `max_distance` all distances are one. Heads share the vectors.
    """

    needs_weights: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, max_len: int, *, causal: bool) -> None:
        super().__init__(config, max_len, causal=causal)
        self.far = config.max_distance_or_published
        self.key_table = nn.Embedding(2 * self.far + 1, config.head_dim)
        self.value_table = nn.Embedding(2 * self.far + 1, config.head_dim)

    def bias(self, q: Tensor, distances: Tensor) -> Tensor:
        by_clipped = q @ self.key_table.weight.T.to(q.dtype)  # (B, H, T, 2 · far + 1)
        numbers = self._numbers(distances, q.shape[-2])
        return by_clipped.gather(-1, numbers.expand(*q.shape[:3], numbers.shape[-1]))  # (B, H, T, S)

    def values(self, weights: Tensor, distances: Tensor) -> Tensor:
        """Weights of keys at one clipped distance add up, then weigh its vector: no (T, S, Dh) is made."""
        numbers = self._numbers(distances, weights.shape[-2]).expand_as(weights)
        shares = weights.new_zeros(*weights.shape[:-1], 2 * self.far + 1).scatter_add(-1, numbers, weights)
        return shares @ self.value_table.weight.to(weights.dtype)  # (B, H, T, Dh)

    def _numbers(self, distances: Tensor, t: int) -> Tensor:  # (T + S - 1) -> (T or 1, S)
        return laid_out(distances.flatten().clamp(-self.far, self.far) + self.far, distances, t)


class Scheme(NamedTuple):
    """What `model.positions` stands for: a vector in the embedding, a relation in self-attention, or neither."""

    absolute: type[Absolute] = Absolute
    relation: type[Relation] = Relation


POSITIONS: dict[str, Scheme] = {
    "learned": Scheme(absolute=Learned),
    "sinusoidal": Scheme(absolute=Sinusoidal),
    "sinusoidal_halves": Scheme(absolute=SinusoidalHalves),
    "rotary": Scheme(relation=Rotary),
    "alibi": Scheme(relation=Alibi),
    "relative": Scheme(relation=Relative),
    "t5": Scheme(relation=Buckets),
    "none": Scheme(),
}


def relation(config: ModelConfig, max_len: int, *, causal: bool) -> Relation:
    """What a layer's self-attention does with distance."""
    return POSITIONS[config.positions].relation(config, max_len, causal=causal)
