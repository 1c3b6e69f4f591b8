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
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, score: str, position: str, p: Parameters, *, past_only: bool
) -> Tensor:
    """q (B, H, T, Dh), k and v (B, G, S, Dh), table (B, 1, T, S): True may be read. Queries are the last of S."""
    n_heads, t, s = q.shape[1], q.shape[2], k.shape[2]
    group = n_heads // k.shape[1]
    k, v = (torch.stack([x[:, h // group] for h in range(n_heads)], dim=1) for x in (k, v))
    if position == "rotary":
        q, k = rotated(q, range(s - t, s)), rotated(k, range(s))
    distance = torch.arange(s) - torch.arange(s - t, s)[:, None]  # (T, S), key minus query
    similar, asked = similarity(q, k, score, p)
    if position == "alibi":
        similar = similar - torch.tensor(alibi_slopes(n_heads))[:, None, None] * distance.abs()
    if position == "t5":
        buckets, far = p["table.weight"].shape[0], 128
        numbers = torch.tensor([t5_bucket(d, buckets, far, past_only) for d in range(1 - s, t)])
        similar = similar + p["table.weight"][numbers[distance + s - 1]].permute(2, 0, 1)
    if position == "relative":
        far = (p["key_table.weight"].shape[0] - 1) // 2
        clipped = distance.clamp(-far, far) + far
        to_keys, to_values = p["key_table.weight"][clipped], p["value_table.weight"][clipped]  # (T, S, Dh)
        similar = similar + torch.einsum("bhid,ijd->bhij", asked, to_keys)
    powers = (similar - similar.detach().amax(-1, keepdim=True)).exp() * table
    shares = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    answer = torch.einsum("bhij,bhjd->bhid", shares, v)
    if position == "relative":
        answer = answer + torch.einsum("bhij,ijd->bhid", shares, to_values)
    return answer


def similarity(q: Tensor, k: Tensor, score: str, p: Parameters) -> tuple[Tensor, Tensor]:
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


def rotated(x: Tensor, places: range, base: float = 10_000.0) -> Tensor:
    """Coordinates d and d + Dh/2 are one complex number, turned by p · base^(-2d/Dh)."""
    half = x.shape[-1] // 2
    angle = torch.tensor([[p * base ** (-2 * d / (2 * half)) for d in range(half)] for p in places])
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def alibi_slopes(n_heads: int) -> list[float]:
    """For 8 heads 1/2, 1/4, ... 1/256; else as the paper's own code: those of a power of two, then every other."""
    if math.log2(n_heads).is_integer():
        start = 2.0 ** (-(2.0 ** -(math.log2(n_heads) - 3)))
        return [start * start**head for head in range(n_heads)]
    below = 2 ** math.floor(math.log2(n_heads))
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: n_heads - below]


def t5_bucket(distance: int, buckets: int, far: int, past_only: bool) -> int:
    """Half the buckets for exact distances, half for ranges that grow up to `far`; two sides halve them again."""
    number = 0
    if past_only:
        distance = max(-distance, 0)
    else:
        buckets //= 2
        number = buckets if distance > 0 else 0
        distance = abs(distance)
    exact = buckets // 2
    if distance < exact:
        return number + distance
    log = math.log(distance / exact) / math.log(far / exact)
    return number + min(buckets - 1, exact + int(log * (buckets - exact) + 1e-6))
