"""Key/value caches whose rows come and go while others are being decoded."""

from __future__ import annotations

import torch
from torch import Tensor

from triform.nn.kv_cache import CrossKVStore, DynamicKVStore, KeyValue, KVCache


def interleave_beams(store: DynamicKVStore, beam_size: int) -> None:
    """Merge every `beam_size` rows into one, with their keys side by side: (2, B, G, S · beam_size, Dh)."""
    assert store.buffer is not None
    filled = store.buffer[:, :, :, : store.length]
    grouped = filled.reshape(2, -1, beam_size, *filled.shape[2:])  # (2, B, beam_size, G, S, Dh)
    store.buffer = grouped.permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
    store.length *= beam_size


def extend_store(store: DynamicKVStore, *, extra_rows: int, front_padding: int) -> None:
    """Add rows, and keys before the first one; a negative `front_padding` drops the first keys."""
    assert store.buffer is not None
    n_tensors, batch_size, heads, _, head_dim = store.buffer.shape
    filled = store.buffer[:, :, :, max(0, -front_padding) : store.length]
    store.length += front_padding
    store.buffer = filled.new_zeros(n_tensors, batch_size + extra_rows, heads, store.length + 32, head_dim)
    store.buffer[:, :batch_size, :, max(0, front_padding) : store.length] = filled


def write_rows(store: DynamicKVStore, rows: Tensor, positions: Tensor, new_kv: KeyValue) -> None:
    """Write keys and values (N, G, P, Dh) at positions (P) of some rows (N)."""
    assert store.buffer is not None
    for buffer, new in zip(store.buffer, new_kv, strict=True):
        buffer[rows[:, None], :, positions] = new.transpose(1, 2)


def append_source(
    store: CrossKVStore, other: CrossKVStore, keep: Tensor | None, other_keep: Tensor | None
) -> Tensor | None:
    """Append the rows of another source, padding the shorter one.

    Args:
        store: The source that grows.
        other: The source whose rows are appended.
        keep: True for real tokens of `store` (B, S); None means all.
        other_keep: The same for `other` (N, S).

    Returns:
        True for real tokens of both (B + N, S); None where there are no sources.
    """
    if store.key_value is None or other.key_value is None:
        return None
    masks = [
        torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if row_keep is None else row_keep
        for row_keep, (k, _) in ((keep, store.key_value), (other_keep, other.key_value))
    ]
    (k, v), (other_k, other_v) = store.key_value, other.key_value
    store.key_value = _concat_padded(k, other_k), _concat_padded(v, other_v)
    return _concat_padded(*(mask[:, None, :, None] for mask in masks))[:, 0, :, 0]


def append_sources(cache: KVCache, other: KVCache, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
    """Append the sources of all layers; arguments and result are those of `append_source`."""
    joint_keep = None
    for (_, own), (_, new) in zip(cache.stores, other.stores, strict=True):
        joint_keep = append_source(own, new, keep, other_keep)
    return joint_keep


def _concat_padded(x: Tensor, y: Tensor) -> Tensor:  # (B, G, S, Dh), (N, G, S', Dh) -> (B + N, G, max, Dh)
    result = x.new_zeros(len(x) + len(y), x.shape[1], max(x.shape[2], y.shape[2]), x.shape[3])
    result[: len(x), :, : x.shape[2]] = x
    result[len(x) :, :, : y.shape[2]] = y
    return result
