"""Sampling: the next token is drawn from the softmax of the logits, restricted by temperature, top_k and top_p.

Each row has its own random generator, so that the result of a request does not depend on the other requests in the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triform.config import DecodeConfig
from triform.generation.backend import NEG_INF, Request, Row, TokenConstraints, TokenPicker

TOPK_GROUP_SIZE = 64  # tokens in each group that `fast_topk` compares by its maximum first


def top_k(logits: Tensor, k: int) -> Tensor:
    """Set logits (B, V) below the k-th best of their row to minus infinity; k = 0 keeps all."""
    if not 0 < k < logits.shape[-1]:
        return logits
    return logits.masked_fill(logits < fast_topk(logits, k)[0][:, -1:], NEG_INF)


def fast_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:  # (B, V) -> (B, k) each
    """Return the values and indices of `logits.topk(k)`, faster for large vocabularies.

    Tokens are divided into groups. Only the k groups with the highest maxima can hold one of the k best tokens, so
    only those are sorted.
    """
    n_groups = logits.shape[-1] // TOPK_GROUP_SIZE
    if n_groups < 4 * k:
        top = logits.topk(k)
        return top.values, top.indices
    n_grouped = n_groups * TOPK_GROUP_SIZE  # a group is every n_groups-th token; the last tokens are in none
    grouped = logits[:, :n_grouped].view(-1, TOPK_GROUP_SIZE, n_groups)
    top_groups = grouped.amax(dim=1).topk(k).indices  # (B, k)
    candidates = grouped.gather(2, top_groups[:, None].expand(-1, TOPK_GROUP_SIZE, -1)).flatten(1)  # (B, 64 · k)
    offsets = torch.arange(TOPK_GROUP_SIZE, device=logits.device)[:, None] * n_groups
    candidate_indices = (top_groups[:, None] + offsets).flatten(1)
    rest_indices = torch.arange(n_grouped, logits.shape[-1], device=logits.device).expand(len(logits), -1)
    top = torch.cat([candidates, logits[:, n_grouped:]], dim=1).topk(k)
    return top.values, torch.cat([candidate_indices, rest_indices], dim=1).gather(1, top.indices)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities add up to p; the most likely one always stays."""
    if p >= 1:
        return logits
    sorted_logits, order = logits.sort(descending=True)
    probabilities = sorted_logits.softmax(dim=-1)
    preceding_mass = probabilities.cumsum(dim=-1) - probabilities
    return logits.masked_fill((preceding_mass >= p).scatter(-1, order, preceding_mass >= p), NEG_INF)


def sample_from_uniform(logits: Tensor, uniforms: Tensor, config: DecodeConfig) -> Tensor:  # (B, V), (B, 1) -> (B)
    """Turn uniform random numbers into tokens, by the cumulative distribution of softmax(logits / temperature).

    It is computed in float64, which is exact enough that no device and no batch changes a draw.
    """
    scaled_logits = top_k(logits, config.top_k).double() / config.temperature
    cumulative = top_p(scaled_logits, config.top_p).softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    indices = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return indices[:, 0].clamp(max=logits.shape[-1] - 1)


class SampledRow(Row):
    """A row with its own random generator."""

    def __init__(self, row_id: int, request: Request, initial_tokens: list[int]) -> None:
        super().__init__(row_id, request, initial_tokens)
        self.generator = torch.Generator().manual_seed(request.seed)

    def draw(self, n: int) -> Tensor:
        """Return the next n random numbers. They do not depend on how many are drawn at once."""
        return torch.rand(n, generator=self.generator, dtype=torch.float64)


class SamplePicker(TokenPicker):
    """Samples the next token. The random numbers for several steps are drawn ahead, on the host."""

    def __init__(self, constraints: TokenConstraints, device: torch.device, config: DecodeConfig) -> None:
        super().__init__(constraints, device)
        self.config = config
        self.uniforms = torch.zeros(0, 0, dtype=torch.float64, device=device)  # (n, B)
        self.key = (*self.key, config.temperature, config.top_k, config.top_p)

    def allocate(self, n_rows: int, n_steps: int) -> None:
        self.uniforms = self.uniforms.new_zeros(n_steps, n_rows)

    def make_row(self, row_id: int, request: Request, initial_tokens: list[int]) -> Row:
        return SampledRow(row_id, request, initial_tokens)

    def draw(self, rows: Sequence[Row | None], n_steps: int) -> None:
        unused = torch.zeros(n_steps, dtype=torch.float64)
        uniforms = [row.draw(n_steps) if isinstance(row, SampledRow) else unused for row in rows]
        if self.uniforms.shape[1] != len(rows):
            self.allocate(len(rows), n_steps)
        self.uniforms[:n_steps] = torch.stack(uniforms, dim=1).to(self.uniforms.device)

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        allowed_logits = logits[:, 0].index_fill(-1, self.banned, NEG_INF)
        uniforms = self.uniforms.index_select(0, step).T  # (B, 1)
        return sample_from_uniform(allowed_logits, uniforms, self.config)[:, None], None
