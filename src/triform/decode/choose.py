"""Picking the next token from its scores: the best one, or one drawn at random.

Each row draws from a generator of its own, so that what a prompt gives does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triform.config import DecodeConfig

Choose = Callable[[Tensor, Sequence[int]], Tensor]  # scores (B, V), row numbers -> tokens (B)
BLOCKS = 64  # as many groups as `leading` may look into


def best(scores: Tensor, rows: Sequence[int]) -> Tensor:
    return scores.argmax(dim=-1)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Scores below the k-th best become minus infinity; 0 keeps all."""
    if not 0 < k < scores.shape[-1]:
        return scores
    return scores.masked_fill(scores < leading(scores, k)[0][:, -1:], float("-inf"))


def leading(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:  # (B, V) -> (B, k) each
    """`topk`, best first, but only groups of tokens whose best is among the k best are sorted."""
    groups = scores.shape[-1] // BLOCKS
    if groups < 4 * k:
        found = scores.topk(k)
        return found.values, found.indices
    grouped = scores[:, : groups * BLOCKS].view(-1, BLOCKS, groups)  # a group is every `groups`-th token
    which = grouped.amax(dim=1).topk(k).indices  # (B, k)
    among = grouped.gather(2, which[:, None].expand(-1, BLOCKS, -1)).flatten(1)  # (B, BLOCKS · k)
    first = torch.arange(BLOCKS, device=scores.device)[:, None] * groups
    places = (which[:, None] + first).flatten(1)
    rest = torch.arange(groups * BLOCKS, scores.shape[-1], device=scores.device).expand(len(scores), -1)
    found = torch.cat([among, scores[:, groups * BLOCKS :]], dim=1).topk(k)
    return found.values, torch.cat([places, rest], dim=1).gather(1, found.indices)


def top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities reach p; the best one always stays."""
    if p >= 1:
        return scores
    ranked, order = scores.sort(descending=True)
    probabilities = ranked.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    return scores.masked_fill((before >= p).scatter(-1, order, before >= p), float("-inf"))


def drawn(scores: Tensor, points: Tensor, config: DecodeConfig) -> Tensor:  # (B, V), (B, 1) -> (B)
    """A token by softmax(scores / temperature) among the top_k and top_p best, where `points` fall in 0..1.

    In float64: sums are exact enough that no device or batch changes a draw.
    """
    wide = top_k(scores, config.top_k).double() / config.temperature
    cumulative = top_p(wide, config.top_p).softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    places = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    return places[:, 0].clamp(max=scores.shape[-1] - 1)


def row_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """A seed for each row of a set of texts, whatever batch it falls into."""
    return [seed * 1_000_003 + row for row in rows]


class Sample:
    """Draws in proportion to softmax(scores / temperature), among the top_k and top_p best."""

    def __init__(self, config: DecodeConfig, seeds: Sequence[int]) -> None:
        self.config = config
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def points(self, row: int, n: int = 1) -> Tensor:
        """A row's next n random numbers; one by one they would be the same."""
        return torch.rand(n, generator=self.generators[row], dtype=torch.float64)

    def __call__(self, scores: Tensor, rows: Sequence[int]) -> Tensor:
        points = torch.stack([self.points(row) for row in rows])  # (B, 1)
        return drawn(scores, points.to(scores.device), self.config)
