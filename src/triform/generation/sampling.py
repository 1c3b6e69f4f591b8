"""Picking the next token from its scores: the best one, or one drawn at random.

Each row draws from a generator of its own, so that what a prompt gives does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triform.config import DecodeConfig

TokenSelector = Callable[[Tensor, Sequence[int]], Tensor]  # scores (B, V), row numbers -> tokens (B)
TOPK_GROUP_SIZE = 64  # as many groups as `leading` may look into


def greedy(logits: Tensor, rows: Sequence[int]) -> Tensor:
    return logits.argmax(dim=-1)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Scores below the k-th best become minus infinity; 0 keeps all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    return logits.masked_fill(logits < fast_topk(logits, k)[0][:, -1:], float("-inf"))


def fast_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:  # (B, V) -> (B, k) each
    """`topk`, best first, but only groups of tokens whose best is among the k best are sorted."""
    n_groups = logits.shape[-1] // TOPK_GROUP_SIZE
    if n_groups < 4 * k:
        top = logits.topk(k)
        return top.values, top.indices
    grouped = logits[:, : n_groups * TOPK_GROUP_SIZE].view(
        -1, TOPK_GROUP_SIZE, n_groups
    )  # a group is every `groups`-th token
    top_groups = grouped.amax(dim=1).topk(k).indices  # (B, k)
    candidates = grouped.gather(2, top_groups[:, None].expand(-1, TOPK_GROUP_SIZE, -1)).flatten(
        1
    )  # (B, BLOCKS · k)
    offsets = torch.arange(TOPK_GROUP_SIZE, device=logits.device)[:, None] * n_groups
    candidate_indices = (top_groups[:, None] + offsets).flatten(1)
    ungrouped_indices = torch.arange(n_groups * TOPK_GROUP_SIZE, logits.shape[-1], device=logits.device).expand(
        len(logits), -1
    )
    top = torch.cat([candidates, logits[:, n_groups * TOPK_GROUP_SIZE :]], dim=1).topk(k)
    return top.values, torch.cat([candidate_indices, ungrouped_indices], dim=1).gather(1, top.indices)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities reach p; the best one always stays."""
    if p >= 1:
        return logits
    sorted_logits, order = logits.sort(descending=True)
    probabilities = sorted_logits.softmax(dim=-1)
    preceding_mass = probabilities.cumsum(dim=-1) - probabilities
    return logits.masked_fill((preceding_mass >= p).scatter(-1, order, preceding_mass >= p), float("-inf"))


def sample_from_uniform(logits: Tensor, uniforms: Tensor, config: DecodeConfig) -> Tensor:  # (B, V), (B, 1) -> (B)
    """A token by softmax(scores / temperature) among the top_k and top_p best, where `points` fall in 0..1.

    In float64: sums are exact enough that no device or batch changes a draw.
    """
    scaled_logits = top_k(logits, config.top_k).double() / config.temperature
    cumulative = top_p(scaled_logits, config.top_p).softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    indices = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return indices[:, 0].clamp(max=logits.shape[-1] - 1)


def row_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """A seed for each row of a set of texts, whatever batch it falls into."""
    return [seed * 1_000_003 + row for row in rows]


class TokenSampler:
    """Draws in proportion to softmax(scores / temperature), among the top_k and top_p best."""

    def __init__(self, config: DecodeConfig, seeds: Sequence[int]) -> None:
        self.config = config
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw_uniforms(self, row: int, n: int = 1) -> Tensor:
        """A row's next n random numbers; one by one they would be the same."""
        return torch.rand(n, generator=self.generators[row], dtype=torch.float64)

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        uniforms = torch.stack([self.draw_uniforms(row) for row in rows])  # (B, 1)
        return sample_from_uniform(logits, uniforms.to(logits.device), self.config)
