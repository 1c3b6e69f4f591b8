"""Keys and values kept between decoding steps. The caller owns the cache; attention only asks it to read.

Attention hands over a function that projects the new keys and values. What happens next is the cache's
affair: `NoCache` uses them as they are, `Growing` appends them to the past, `Ring` writes them over the oldest of
a fixed room, `Once` projects a source sequence the first time and remembers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]  # each (B, G, S, Dh)


class KVStore(Protocol):
    def read(self, project: Callable[[], KeyValue]) -> KeyValue: ...


class NoKVCache:
    def read(self, project: Callable[[], KeyValue]) -> KeyValue:
        return project()


@dataclass
class DynamicKVCache:
    """Self-attention's past. Room doubles when it runs out, so appending is cheap."""

    length: int = 0
    buffer: Tensor | None = None  # (2, B, G, capacity, Dh)

    def read(self, project: Callable[[], KeyValue]) -> KeyValue:
        new_kv = project()  # (B, G, T, Dh) each
        n_new = new_kv[0].shape[2]
        end = self.length + n_new
        if self.buffer is None or end > self.buffer.shape[3]:
            self.buffer = self._grow_buffer(new_kv[0], capacity=max(32, 2 * end))
        keys, values = self.buffer[0], self.buffer[1]
        keys.narrow(2, self.length, n_new).copy_(new_kv[0])
        values.narrow(2, self.length, n_new).copy_(new_kv[1])
        self.length = end
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def _grow_buffer(self, new_keys: Tensor, capacity: int) -> Tensor:
        batch_size, heads, _, head_dim = new_keys.shape
        buffer = new_keys.new_empty(2, batch_size, heads, capacity, head_dim)
        if self.buffer is not None:
            buffer[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
        return buffer

    def select(self, rows: Tensor) -> None:
        """Only what is used is copied, and room for a few more."""
        if self.buffer is not None:
            self.buffer = self.buffer.narrow(3, 0, min(self.length + 32, self.buffer.shape[3])).index_select(
                1, rows
            )

    def key_value(self) -> KeyValue:
        """All that was read so far."""
        assert self.buffer is not None
        return self.buffer[0, :, :, : self.length], self.buffer[1, :, :, : self.length]

    def interleave_beams(self, beam_size: int) -> None:
        """Every `size` rows become one, their keys side by side: (2, B, G, S · size, Dh)."""
        assert self.buffer is not None
        filled = self.buffer[:, :, :, : self.length]
        grouped = filled.reshape(2, -1, beam_size, *filled.shape[2:])  # (2, B, size, G, S, Dh)
        self.buffer = grouped.permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
        self.length *= beam_size

    def extend(self, *, extra_rows: int, front_padding: int) -> None:
        """Room for so many rows more, and so many keys before the first (or fewer, where it is below zero)."""
        assert self.buffer is not None
        n_tensors, batch_size, heads, _, head_dim = self.buffer.shape
        filled = self.buffer[:, :, :, max(0, -front_padding) : self.length]
        self.length += front_padding
        self.buffer = filled.new_zeros(n_tensors, batch_size + extra_rows, heads, self.length + 32, head_dim)
        self.buffer[:, :batch_size, :, max(0, front_padding) : self.length] = filled

    def write(self, rows: Tensor, positions: Tensor, new_kv: KeyValue) -> None:  # (N), (P), (N, G, P, Dh) each
        """Lay these keys and values at places of some rows."""
        assert self.buffer is not None
        for buffer, new in zip(self.buffer, new_kv, strict=True):
            buffer[rows[:, None], :, positions] = new.transpose(1, 2)


@dataclass
class RingKVCache:
    """Self-attention's past in a fixed room (B, G, C, Dh): the newest is written over the oldest.

    Where that is, only the device knows (`places`): nothing changes from step to step that a recorded graph would
    have to be told.
    """

    keys: Tensor
    values: Tensor
    write_positions: Tensor

    def read(self, project: Callable[[], KeyValue]) -> KeyValue:
        k, v = project()
        self.keys.index_copy_(2, self.write_positions, k)
        self.values.index_copy_(2, self.write_positions, v)
        return self.keys, self.values


@dataclass
class CrossKVCache:
    """Cross-attention's source: projected once, read at every step."""

    key_value: KeyValue | None = None

    def read(self, project: Callable[[], KeyValue]) -> KeyValue:
        if self.key_value is None:
            self.key_value = project()
        return self.key_value

    def select(self, rows: Tensor) -> None:
        if self.key_value is not None:
            self.key_value = self.key_value[0].index_select(0, rows), self.key_value[1].index_select(0, rows)

    def append_rows(self, other: CrossKVCache) -> None:
        """The other's rows after its own; the shorter ones are filled up."""
        if self.key_value is not None and other.key_value is not None:
            (k, v), (k2, v2) = self.key_value, other.key_value
            self.key_value = _concat_padded(k, k2), _concat_padded(v, v2)

    def joint_keep_mask(self, other: CrossKVCache, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """Which tokens are real in the rows of both, (B + N, S); to be asked before they are joined."""
        if self.key_value is None or other.key_value is None:
            return None
        masks = [
            torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if row_keep is None else row_keep
            for row_keep, (k, _) in ((keep, self.key_value), (other_keep, other.key_value))
        ]
        return _concat_padded(*(mask[:, None, :, None] for mask in masks))[:, 0, :, 0]


def _concat_padded(x: Tensor, y: Tensor) -> Tensor:  # (B, G, S, Dh), (N, G, S', Dh) -> (B + N, G, max, Dh)
    result = x.new_zeros(len(x) + len(y), x.shape[1], max(x.shape[2], y.shape[2]), x.shape[3])
    result[: len(x), :, : x.shape[2]] = x
    result[len(x) :, :, : y.shape[2]] = y
    return result


@dataclass
class LayerKVCache:
    """What one layer remembers: its own past and, in an encoder-decoder, the source."""

    past: KVStore = field(default_factory=DynamicKVCache)
    source: KVStore = field(default_factory=CrossKVCache)


NO_LAYER_CACHE = LayerKVCache(past=NoKVCache(), source=NoKVCache())


class StaticKVCache:
    """A ring a layer and, in an encoder-decoder, its source in a fixed place: each (layers, 2, B, G, C, Dh)."""

    def __init__(self, buffers: Tensor, source_buffers: Tensor | None, write_positions: Tensor) -> None:
        self.length = 0  # where tokens stand is told by their rows
        sources = [None] * len(buffers) if source_buffers is None else [(k, v) for k, v in source_buffers]
        self.layers = [
            LayerKVCache(RingKVCache(keys, values, write_positions), CrossKVCache(source_kv))
            for (keys, values), source_kv in zip(buffers, sources, strict=True)
        ]


class KVCache:
    """One `LayerCache` a layer. `select` keeps, drops, repeats or reorders rows: beams and early finish."""

    def __init__(self, n_layers: int) -> None:
        self.stores = [(DynamicKVCache(), CrossKVCache()) for _ in range(n_layers)]
        self.layers = [LayerKVCache(past, source) for past, source in self.stores]

    @property
    def length(self) -> int:
        return self.stores[0][0].length

    def select(self, rows: Tensor) -> None:
        for past, source in self.stores:
            past.select(rows)
            source.select(rows)

    def append_sources(self, other: KVCache, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """The other's sources after its own, and which of all their tokens are real, (B + N, S)."""
        joint_keep = self.stores[0][1].joint_keep_mask(other.stores[0][1], keep, other_keep)
        for (_, own_source), (_, other_source) in zip(self.stores, other.stores, strict=True):
            own_source.append_rows(other_source)
        return joint_keep
