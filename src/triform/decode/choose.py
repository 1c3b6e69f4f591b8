"""Picking the next token from its scores: the best one, or one drawn at random.

Each row draws from a generator of its own, so that what a prompt gives does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triform.config import DecodeConfig

Choose = Callable[[Tensor, Sequence[int]], Tensor]  # scores (B, V), row numbers -> tokens (B)


def best(scores: Tensor, rows: Sequence[int]) -> Tensor:
    return scores.argmax(dim=-1)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Scores below the k-th best become minus infinity; 0 keeps all."""
    if not 0 < k < scores.shape[-1]:
        return scores
    return scores.masked_fill(scores < scores.topk(k).values[:, -1:], float("-inf"))


def top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities reach p; the best one always stays."""
    if p >= 1:
        return scores
    ranked, order = scores.sort(descending=True)
    probabilities = ranked.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    return scores.masked_fill((before >= p).scatter(-1, order, before >= p), float("-inf"))


def row_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """A seed for each row of a set of texts, whatever batch it falls into."""
    return [seed * 1_000_003 + row for row in rows]


class Sample:
    """Draws in proportion to softmax(scores / temperature), among the top_k and top_p best."""

    def __init__(self, config: DecodeConfig, seeds: Sequence[int]) -> None:
        self.config = config
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, scores: Tensor, rows: Sequence[int]) -> Tensor:
        """In float64 on the CPU: exact sums on every device, and the token is wanted there next anyway."""
        wide = top_k(scores.cpu().double() / self.config.temperature, self.config.top_k)
        cumulative = top_p(wide, self.config.top_p).softmax(dim=-1).cumsum(dim=-1)  # (B, V)
        draws = [torch.rand(1, generator=self.generators[row], dtype=torch.float64) for row in rows]
        point = torch.stack(draws) * cumulative[:, -1:]  # (B, 1)
        tokens = torch.searchsorted(cumulative, point, right=True)[:, 0].clamp(max=scores.shape[-1] - 1)
        return tokens.to(scores.device)
