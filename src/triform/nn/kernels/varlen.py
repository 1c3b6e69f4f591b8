"""Packed sequences on CUDA in half precision: flash attention for sequences of different lengths.

The kernel takes a window and the ends of the sequences instead of a mask. It skips everything outside them, and
nothing is compiled, so the lengths may differ in every batch.
"""

from __future__ import annotations

import inspect
from functools import cache, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from triform.nn.attention import ScoreFunction, repeat_kv
from triform.nn.kernels.sdpa import UNBOUNDED, mask_info
from triform.nn.kernels.tiling import mask_regions
from triform.nn.masks import AttentionMask

HALF_DTYPES = (torch.bfloat16, torch.float16)


def is_supported(q: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float) -> bool:
    """Return whether this is supported: half precision, at most a window, no distance bias, no dropout."""
    is_plain = mask_info(mask).span_is_exact and not score_fn.relative_position.has_distance_bias and not dropout
    return is_plain and q.dtype in HALF_DTYPES and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and _is_available()


@cache
def _is_available() -> bool:
    """Return whether this version of PyTorch has the kernel, with windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute attention within each packed sequence and within the span of the mask."""
    from torch.nn.attention.varlen import varlen_attn

    score = score_fn.score
    b, _, t, _ = q.shape
    cu_seqlens_q, cu_seqlens_k = compute_cu_seqlens(mask, b, t, k.shape[-2])
    y = varlen_attn(
        _flatten_batch(score.prepare_queries(q)),
        _flatten_batch(repeat_kv(score.prepare_keys(k), q)),
        _flatten_batch(repeat_kv(v, q)),
        cu_seq_q=_to_device(cu_seqlens_q, q.device),
        cu_seq_k=_to_device(cu_seqlens_k, q.device),
        max_q=_max_seqlen(cu_seqlens_q),
        max_k=_max_seqlen(cu_seqlens_k),
        scale=score.scale,
        window_size=_window_size(mask),
    )  # (B * T, H, Dh)
    assert isinstance(y, Tensor)
    return y.view(b, t, *y.shape[1:]).transpose(1, 2)  # (B, H, T, Dh)


def compute_cu_seqlens(mask: AttentionMask, b: int, t: int, s: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the cumulative lengths of all sequences of the batch end to end, for queries and for keys."""
    tiles = mask_regions(mask, t, s) * b
    query_lengths, key_lengths = (tile.q_len for tile in tiles), (tile.k_len for tile in tiles)
    return tuple(accumulate(query_lengths, initial=0)), tuple(accumulate(key_lengths, initial=0))


def _window_size(mask: AttentionMask) -> tuple[int, int]:
    before, after = (-1 if limit == UNBOUNDED else limit for limit in mask_info(mask).span)
    return before, after


def _flatten_batch(x: Tensor) -> Tensor:  # (B, H, T, Dh) -> (B * T, H, Dh)
    return x.transpose(1, 2).flatten(0, 1)


def _max_seqlen(cu_seqlens: tuple[int, ...]) -> int:
    return max(end - start for start, end in pairwise(cu_seqlens))


@lru_cache(maxsize=64)
def _to_device(cu_seqlens: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(cu_seqlens, dtype=torch.int32, device=device)
