"""Sampling: the next token is drawn from the softmax of the logits, restricted by temperature, top_k and top_p.

Each row of a batch has different settings. `SamplePicker` in `backend.py` calls these functions.

Shapes: B rows, V tokens in the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from triform.config import DecodeConfig

NEG_INF = float("-inf")
TOPK_GROUP_SIZE = 64  # tokens in each group that `fast_topk` compares by its maximum first


def top_k(logits: Tensor, k: Tensor, max_k: int) -> Tensor:  # (B, V), (B, 1) -> (B, V)
    """Set logits below the k-th best of their row to minus infinity; k = 0 keeps all. No k is above `max_k`."""
    max_k = min(max_k, logits.shape[-1])
    thresholds = fast_topk(logits, max_k)[0].gather(1, (k - 1).clamp(0, max_k - 1))  # (B, 1)
    return logits.masked_fill((logits < thresholds) & (k > 0), NEG_INF)


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


def top_p(logits: Tensor, p: Tensor) -> Tensor:  # (B, V), (B, 1) -> (B, V)
    """Keep the fewest tokens whose probabilities add up to p; the most likely one always stays. p = 1 keeps all."""
    sorted_logits, order = logits.sort(descending=True)
    probabilities = sorted_logits.softmax(dim=-1)
    preceding_mass = probabilities.cumsum(dim=-1) - probabilities
    excluded = (preceding_mass >= p) & (p < 1)
    return logits.masked_fill(excluded.scatter(-1, order, excluded), NEG_INF)


class PickerMode(NamedTuple):
    """What a step computes for the rows of a batch. Rows that do not need a part of it get the same tokens."""

    greedy: bool = True
    sample: bool = False
    max_k: int = 0  # at least the largest top_k; 0: all are 0
    top_p: bool = False
    logprobs: bool = False


class RowSettings(NamedTuple):
    """The settings of all rows, each (B, 1) in float64."""

    greedy: Tensor  # 1 or 0
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


def row_settings(decode: DecodeConfig) -> list[float]:
    """Return the fields of `RowSettings` for one row."""
    return [float(decode.strategy != "sample"), decode.temperature, decode.top_k, decode.top_p]


def sample_from_uniform(logits: Tensor, uniforms: Tensor, settings: RowSettings, mode: PickerMode) -> Tensor:
    """Turn uniform random numbers (B, 1) into tokens (B), by the cumulative distribution of the softmax.

    It is computed in float64, which is exact enough that no device and no batch changes a draw.
    """
    if mode.max_k:
        logits = top_k(logits, settings.top_k.long(), mode.max_k)
    scaled_logits = logits.double() / settings.temperature
    if mode.top_p:
        scaled_logits = top_p(scaled_logits, settings.top_p)
    cumulative = scaled_logits.softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    indices = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return indices[:, 0].clamp(max=logits.shape[-1] - 1)
