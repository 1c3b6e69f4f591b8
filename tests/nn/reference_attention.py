"""Attention as the papers write it, sharing nothing with the code under test.

Every score, every relation and every mask is a whole tensor here, made in the most literal way: Shaw's vectors are
a (T, S, Dh) tensor, T5's buckets are counted in Python, rotary turns complex numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Parameters = dict[str, Tensor]


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, score: str, position: str, p: Parameters, *, causal: bool
) -> Tensor:
    """q (B, H, T, Dh), k and v (B, G, S, Dh), table (B, 1, T, S): True may be read. Queries are the last of S."""
    n_heads, t, s = q.shape[1], q.shape[2], k.shape[2]
    group = n_heads // k.shape[1]
    k, v = (torch.stack([x[:, h // group] for h in range(n_heads)], dim=1) for x in (k, v))
    if position == "rotary":
        q, k = rotate(q, range(s - t, s)), rotate(k, range(s))
    distance = torch.arange(s) - torch.arange(s - t, s)[:, None]  # (T, S), key minus query
    scores, scaled_queries = compute_scores(q, k, score, p)
    if position == "alibi":
        scores = scores - torch.tensor(alibi_slopes(n_heads))[:, None, None] * distance.abs()
    if position == "t5":
        buckets, max_distance = p["table.weight"].shape[0], 128
        bucket_indices = torch.tensor([t5_bucket(d, buckets, max_distance, causal) for d in range(1 - s, t)])
        scores = scores + p["table.weight"][bucket_indices[distance + s - 1]].permute(2, 0, 1)
    if position == "relative":
        max_distance = (p["key_table.weight"].shape[0] - 1) // 2
        clipped = distance.clamp(-max_distance, max_distance) + max_distance
        to_keys, to_values = p["key_table.weight"][clipped], p["value_table.weight"][clipped]  # (T, S, Dh)
        scores = scores + torch.einsum("bhid,ijd->bhij", scaled_queries, to_keys)
    exp_scores = (scores - scores.detach().amax(-1, keepdim=True)).exp() * mask
    weights = exp_scores / exp_scores.sum(-1, keepdim=True).clamp(min=1e-300)
    output = torch.einsum("bhij,bhjd->bhid", weights, v)
    if position == "relative":
        output = output + torch.einsum("bhij,ijd->bhid", weights, to_values)
    return output


def compute_scores(q: Tensor, k: Tensor, score: str, p: Parameters) -> tuple[Tensor, Tensor]:
    """Scores (B, H, T, S), and the queries that a key's relative vector meets too."""
    if score == "additive":
        sums = torch.tanh(q[:, :, :, None, :] + k[:, :, None, :, :])
        return torch.einsum("bhijd,hd->bhij", sums, p["weight"]), q
    if score == "scaled_dot":
        q = q / math.sqrt(q.shape[-1])
    if score == "cosine":
        q = q / q.square().sum(-1, keepdim=True).sqrt() * p["log_temperature"].exp()[:, None, None]
        k = k / k.square().sum(-1, keepdim=True).sqrt()
    return torch.einsum("bhid,bhjd->bhij", q, k), q


def rotate(x: Tensor, positions: range, base: float = 10_000.0) -> Tensor:
    """Coordinates d and d + Dh/2 are one complex number, turned by p · base^(-2d/Dh)."""
    half = x.shape[-1] // 2
    angle = torch.tensor([[p * base ** (-2 * d / (2 * half)) for d in range(half)] for p in positions])
    rotated = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([rotated.real, rotated.imag], dim=-1)


def alibi_slopes(n_heads: int) -> list[float]:
    """For 8 heads 1/2, 1/4, ... 1/256; else as the paper's own code: those of a power of two, then every other."""
    if math.log2(n_heads).is_integer():
        start = 2.0 ** (-(2.0 ** -(math.log2(n_heads) - 3)))
        return [start * start**head for head in range(n_heads)]
    power_of_two = 2 ** math.floor(math.log2(n_heads))
    return alibi_slopes(power_of_two) + alibi_slopes(2 * power_of_two)[0::2][: n_heads - power_of_two]


def t5_bucket(distance: int, n_buckets: int, max_distance: int, causal: bool) -> int:
    """Half the buckets for exact distances, half for ranges that grow up to `far`; two sides halve them again."""
    offset = 0
    if causal:
        distance = max(-distance, 0)
    else:
        n_buckets //= 2
        offset = n_buckets if distance > 0 else 0
        distance = abs(distance)
    n_exact = n_buckets // 2
    if distance < n_exact:
        return offset + distance
    log_ratio = math.log(distance / n_exact) / math.log(max_distance / n_exact)
    return offset + min(n_buckets - 1, n_exact + int(log_ratio * (n_buckets - n_exact) + 1e-6))
