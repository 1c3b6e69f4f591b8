"""PyTorch's fused attention (`F.scaled_dot_product_attention`), and masks in the form that it takes.

The fused kernel never writes the (T, S) weights to memory. It is called on a tile: some queries and the keys that
they can read, usually all of them. `mask_info` says what kernels know about a mask, so that they can skip what it
hides. `mask_cache` keeps the tensors made from a mask for as long as the mask lives, so that all layers of a
forward pass share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from triform.nn.attention import RelativePosition, ScoreFunction
from triform.nn.kernels.beams import BeamMask
from triform.nn.kernels.packing import PackedMask
from triform.nn.masks import AndMask, AttentionMask, CausalMask, FullMask, WindowMask

UNBOUNDED = 1 << 40  # longer than any text
MIN_TILE_CPU, MIN_TILE_GPU = 64, 1024  # queries of a tile; with fewer, starting kernels takes most of the time
MAX_CACHED_ENTRIES = 1 << 26  # entries of dense masks that are kept for one mask


class AttentionSpan(NamedTuple):
    """How many positions before and after itself a query can read at most."""

    before: int = UNBOUNDED
    after: int = UNBOUNDED

    @property
    def width(self) -> int:
        """Number of positions that one query can read at most."""
        return self.before + 1 + self.after


class MaskInfo(NamedTuple):
    """What kernels know about a mask. The defaults are true of every mask."""

    span: AttentionSpan = AttentionSpan()
    span_is_exact: bool = False  # the span (and the bounds of packed sequences) describe the mask completely
    is_shift_invariant: bool = False  # only the distance between query and key counts
    is_packed: bool = False  # sequences lie end to end and do not read each other
    may_mask_all_keys: bool = True  # a query may have no key to read


KNOWN_MASKS: dict[type[AttentionMask], MaskInfo] = {
    FullMask: MaskInfo(span_is_exact=True, is_shift_invariant=True),
    CausalMask: MaskInfo(AttentionSpan(after=0), span_is_exact=True, is_shift_invariant=True),
    PackedMask: MaskInfo(span_is_exact=True, is_packed=True),
    BeamMask: MaskInfo(may_mask_all_keys=False),
}


def mask_info(mask: AttentionMask) -> MaskInfo:
    """Return what is known about a mask."""
    if isinstance(mask, AndMask):
        cache = mask_cache(mask)
        if cache.info is None:
            cache.info = _combined_info([mask_info(part) for part in mask.masks])
        return cache.info
    if isinstance(mask, WindowMask):
        span = AttentionSpan(mask.width - 1, mask.width - 1)
        return MaskInfo(span, span_is_exact=True, is_shift_invariant=True)
    return KNOWN_MASKS.get(type(mask), MaskInfo())


def _combined_info(parts: Sequence[MaskInfo]) -> MaskInfo:
    return MaskInfo(
        AttentionSpan(min(part.span.before for part in parts), min(part.span.after for part in parts)),
        span_is_exact=all(part.span_is_exact for part in parts),
        is_shift_invariant=all(part.is_shift_invariant for part in parts),
        is_packed=any(part.is_packed for part in parts),
    )


class Tile(NamedTuple):
    """Some queries and some keys of an attention: where they start, how many there are."""

    q_start: int
    q_len: int
    k_start: int
    k_len: int
    q_position: int  # of the first query, counted in keys


def full_tile(t: int, s: int) -> Tile:
    """Return the tile of all t queries and s keys; the queries are the last of the positions."""
    return Tile(q_start=0, q_len=t, k_start=0, k_len=s, q_position=s - t)


def is_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU, where starting a kernel takes as long as hundreds of queries."""
    return x.device.type in ("cuda", "mps")


def min_tile_len(x: Tensor) -> int:
    """Return how many queries a tile should have at least on this device."""
    return MIN_TILE_GPU if is_gpu(x) else MIN_TILE_CPU


def is_single_tile(info: MaskInfo, t: int, min_len: int) -> bool:
    """Return whether one tile is enough, because there are few queries or the window is wide."""
    return not info.is_packed and t <= max(min_len, info.span.width // 2)


class MaskCache:
    """Tensors and tilings made from one mask."""

    def __init__(self) -> None:
        self.info: MaskInfo | None = None
        self.tilings: dict[tuple[int, ...], list[Tile]] = {}
        self.block_mask: tuple[object, Any] | None = None  # FlexAttention's, of one shape
        self.dense_masks: dict[tuple[Tile, torch.device], Tensor] = {}
        self.n_entries = 0  # of all dense masks
        self.bias: tuple[object, Tensor, Tensor] | None = None  # the newest one

    def tensors(self) -> list[object]:
        """Return everything that a CUDA graph may read again; whoever captured one must keep it alive."""
        return [*self.dense_masks.values(), self.bias, self.block_mask]

    def add_dense(self, key: tuple[Tile, torch.device], keep: Tensor) -> None:
        """Keep a dense mask, unless it is too large. The others are dropped if all together are too large."""
        if self.n_entries + keep.numel() > MAX_CACHED_ENTRIES:
            self.dense_masks, self.n_entries = {}, 0
        if keep.numel() <= MAX_CACHED_ENTRIES:
            self.dense_masks[key] = keep
            self.n_entries += keep.numel()


_CACHES: WeakKeyDictionary[AttentionMask, MaskCache] = WeakKeyDictionary()


def mask_cache(mask: AttentionMask) -> MaskCache:
    """Return the cache of this mask. While `torch.compile` traces, every call returns a new one."""
    if torch.compiler.is_compiling():
        return MaskCache()
    cache = _CACHES.get(mask)
    if cache is None:
        cache = _CACHES[mask] = MaskCache()
    return cache


def clear_mask_cache(mask: AttentionMask) -> None:
    """Drop the cache of this mask. Tensors made during a failed capture of a CUDA graph hold no values."""
    _CACHES.pop(mask, None)


def dense_mask(mask: AttentionMask, tile: Tile, device: torch.device) -> Tensor:  # -> (B or 1, 1, T, S)
    """Return a tile of the mask as a boolean tensor, from the cache where possible."""
    if mask_info(mask).is_shift_invariant:
        tile = tile._replace(q_start=0, k_start=0, q_position=tile.q_position - tile.k_start)
    cache, key = mask_cache(mask), (tile, device)
    keep = cache.dense_masks.get(key)
    if keep is None:
        with torch.inference_mode(False):  # made in evaluation, it may be needed in training
            keep = compute_dense_mask(mask, tile, device)
        cache.add_dense(key, keep)
    return keep


def compute_dense_mask(mask: AttentionMask, tile: Tile, device: torch.device) -> Tensor:
    """Compute a tile of the mask as a boolean tensor."""
    _, t, k_start, s, q_position = tile
    if tile == full_tile(t, s):
        return mask.dense(t, s, device)
    b = torch.arange(mask.batch_size, device=device)[:, None, None]
    q = torch.arange(q_position, q_position + t, device=device)[None, :, None]
    k = torch.arange(k_start, k_start + s, device=device)[None, None, :]
    return mask.allows(b, q, k).expand(mask.batch_size, t, s)[:, None]


def tile_distances(mask: AttentionMask, tile: Tile, device: torch.device) -> Tensor:  # -> (T or 1, S)
    """Return the position of each key of a tile minus that of each query."""
    _, t, k_start, s, q_position = tile
    if isinstance(mask, BeamMask):
        return mask.distances(t, s, device)[:, k_start : k_start + s]
    q_positions = torch.arange(q_position, q_position + t, device=device)
    return torch.arange(k_start, k_start + s, device=device) - q_positions[:, None]


def tile_distance_bias(
    mask: AttentionMask, tile: Tile, relative_position: RelativePosition, q: Tensor
) -> Tensor:  # -> (1, H, T or 1, S)
    """Return what distance adds to the scores of a tile, computed once for each of its T + S - 1 distances."""
    if isinstance(mask, BeamMask):
        return relative_position.score_bias(q, tile_distances(mask, tile, q.device))
    _, t, k_start, s, q_position = tile
    first_distance = k_start - (q_position + t - 1)
    distances = torch.arange(first_distance, first_distance + t + s - 1, device=q.device)
    return expand_toeplitz(relative_position.distance_bias(distances), t)[None].to(q.dtype)


def expand_toeplitz(x: Tensor, t: int) -> Tensor:  # (..., T + S - 1) -> (..., T, S)
    """Return a table of queries and keys from one number for each distance, which fills a diagonal.

    The distances start with that of the last query from the first key.
    """
    return x.unfold(-1, x.shape[-1] - t + 1, 1).flip(-2)


def additive_bias(
    mask: AttentionMask, tile: Tile, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the mask as a bias of 0 or minus infinity, and which queries have no key to read."""
    cache, key = mask_cache(mask), (tile, device, dtype)
    bias = cache.bias  # read once: another thread may replace it at any time
    if bias is None or bias[0] != key:
        keep = dense_mask(mask, tile, device)
        with torch.inference_mode(False):
            values = torch.zeros(keep.shape, dtype=dtype, device=device).masked_fill(~keep, float("-inf"))
            bias = cache.bias = key, values, ~keep.any(dim=-1, keepdim=True)
    return bias[1], bias[2]


class MaskKind(Enum):
    """How the mask of a tile is passed to a kernel: not at all, as the flag `is_causal`, or as a tensor."""

    NONE = 0
    CAUSAL = 1
    DENSE = 2


def mask_kind(info: MaskInfo, tile: Tile) -> MaskKind:
    """Return the cheapest way to pass the mask of this tile to a kernel."""
    if not info.span_is_exact:
        return MaskKind.DENSE
    before, after = info.span
    sees_all_past = tile.q_position + tile.q_len - 1 - tile.k_start <= before
    if sees_all_past and tile.k_start + tile.k_len - 1 - tile.q_position <= after:
        return MaskKind.NONE
    if sees_all_past and after == 0 and (tile.q_position, tile.q_len) == (tile.k_start, tile.k_len):
        return MaskKind.CAUSAL
    return MaskKind.DENSE


def attend_tile(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, tile: Tile, score_fn: ScoreFunction, dropout: float,
    sdpa: Callable[..., Tensor] = F.scaled_dot_product_attention,
) -> Tensor:  # fmt: skip
    """Compute the attention of one tile, whose queries and keys are prepared for the dot product."""
    info = mask_info(mask)
    kind = mask_kind(info, tile)
    has_distance_bias = score_fn.relative_position.has_distance_bias
    is_causal = kind is MaskKind.CAUSAL and not has_distance_bias
    keep = None if is_causal or kind is MaskKind.NONE else dense_mask(mask, tile, q.device)
    attn_mask, masked_queries = keep, None
    if q.is_cuda and keep is not None and not info.span_is_exact and not has_distance_bias:
        attn_mask, masked_queries = additive_bias(mask, tile, q.device, q.dtype)  # once, not in each layer
    if has_distance_bias:
        bias = tile_distance_bias(mask, tile, score_fn.relative_position, q)
        attn_mask = bias if keep is None else bias.masked_fill(~keep, float("-inf"))
    y = sdpa(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal, scale=score_fn.score.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    if keep is None or info.span_is_exact or not info.may_mask_all_keys or not q.is_cuda:
        return y
    # For a query without any key, cuDNN's kernel returns the mean of all values instead of zeros.
    return y.masked_fill(~keep.any(dim=-1, keepdim=True) if masked_queries is None else masked_queries, 0.0)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute attention in one call of the fused kernel. Packed sequences need `tiled_sdpa_attention`."""
    assert not mask_info(mask).is_packed, "one call would let packed sequences read each other"
    score, tile = score_fn.score, full_tile(q.shape[-2], k.shape[-2])
    return attend_tile(score.prepare_queries(q), score.prepare_keys(k), v, mask, tile, score_fn, dropout)


def single_query_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute attention of one query that reads every key: a decode step with as few calls as possible."""
    score = score_fn.score
    return F.scaled_dot_product_attention(
        score.prepare_queries(q), score.prepare_keys(k), v, scale=score.scale, enable_gqa=q.shape[1] != k.shape[1]
    )
