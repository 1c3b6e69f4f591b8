"""Keys and values kept between decode steps. The caller owns the cache and passes it to the model.

A cache belongs to a model and has two stores for each layer. A store belongs to one attention module, which calls
`update` with a function that computes the new keys and values. `DynamicKVStore` (self-attention) appends them to
the earlier ones; `CrossKVStore` (cross-attention) calls the function once and keeps the result. `StaticKVCache`
has a fixed size and fixed addresses, so that a decode step can be captured as a CUDA graph.

Shapes: B rows, N other rows, G heads of keys and values, S cached positions, Dh head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triform.nn.attention import KeyValue


@dataclass
class DynamicKVStore:
    """Keys and values of self-attention. The buffer doubles when it is full, so appending is cheap."""

    length: int = 0
    buffer: Tensor | None = None  # (2, B, G, capacity, Dh)

    def update(self, project: Callable[[], KeyValue]) -> KeyValue:
        """Append the new keys and values and return all of them."""
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
        """Keep these rows in this order; a row may be repeated."""
        if self.buffer is not None:
            capacity = min(self.length + 32, self.buffer.shape[3])
            self.buffer = self.buffer.narrow(3, 0, capacity).index_select(1, rows)

    def key_value(self) -> KeyValue:
        """Return the cached keys and values."""
        assert self.buffer is not None
        return self.buffer[0, :, :, : self.length], self.buffer[1, :, :, : self.length]

    def interleave_beams(self, beam_size: int) -> None:
        """Merge every `beam_size` rows into one, with their keys side by side: (2, B, G, S · beam_size, Dh)."""
        assert self.buffer is not None
        filled = self.buffer[:, :, :, : self.length]
        grouped = filled.reshape(2, -1, beam_size, *filled.shape[2:])  # (2, B, beam_size, G, S, Dh)
        self.buffer = grouped.permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
        self.length *= beam_size

    def extend(self, *, extra_rows: int, front_padding: int) -> None:
        """Add rows, and positions before the first one; a negative `front_padding` drops the first positions."""
        assert self.buffer is not None
        _, batch_size, heads, _, head_dim = self.buffer.shape
        filled = self.buffer[:, :, :, max(0, -front_padding) : self.length]
        self.length += front_padding
        self.buffer = filled.new_zeros(2, batch_size + extra_rows, heads, self.length + 32, head_dim)
        self.buffer[:, :batch_size, :, max(0, front_padding) : self.length] = filled

    def write_rows(self, rows: Tensor, positions: Tensor, new_kv: KeyValue) -> None:
        """Write keys and values (N, G, P, Dh) at positions (P) of some rows (N)."""
        assert self.buffer is not None
        for buffer, new in zip(self.buffer, new_kv, strict=True):
            buffer[rows[:, None], :, positions] = new.transpose(1, 2)


@dataclass
class CrossKVStore:
    """Keys and values of the source in cross-attention: projected once, read at every step."""

    key_value: KeyValue | None = None

    def update(self, project: Callable[[], KeyValue]) -> KeyValue:
        """Return the keys and values, which the first call projects."""
        if self.key_value is None:
            self.key_value = project()
        return self.key_value

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order; a row may be repeated."""
        if self.key_value is not None:
            self.key_value = self.key_value[0].index_select(0, rows), self.key_value[1].index_select(0, rows)

    def append_rows(self, other: CrossKVStore, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """Append the rows of another source, padding the shorter one.

        Args:
            other: The source whose rows are appended.
            keep: True for real tokens of this source (B, S); None means all.
            other_keep: The same for the other source (N, S).

        Returns:
            True for real tokens of both (B + N, S); None where there are no sources.
        """
        if self.key_value is None or other.key_value is None:
            return None
        masks = [
            torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if row_keep is None else row_keep
            for row_keep, (k, _) in ((keep, self.key_value), (other_keep, other.key_value))
        ]
        (k, v), (other_k, other_v) = self.key_value, other.key_value
        self.key_value = _concat_padded(k, other_k), _concat_padded(v, other_v)
        return _concat_padded(*(mask[:, None, :, None] for mask in masks))[:, 0, :, 0]


def _concat_padded(x: Tensor, y: Tensor) -> Tensor:  # (B, G, S, Dh), (N, G, S', Dh) -> (B + N, G, max, Dh)
    result = x.new_zeros(len(x) + len(y), x.shape[1], max(x.shape[2], y.shape[2]), x.shape[3])
    result[: len(x), :, : x.shape[2]] = x
    result[len(x) :, :, : y.shape[2]] = y
    return result


class KVCache:
    """The cache of a whole model: for each layer one store for self-attention and one for cross-attention.

    Example:
        >>> from triform.config import DataSizes, ModelConfig
        >>> from triform.models.decoder import Decoder
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = Decoder(config, DataSizes(vocab_size=100, max_len=16))
        >>> cache = KVCache(n_layers=2)
        >>> prefill = model(torch.tensor([[1, 2, 3]]), cache=cache)  # (1, 3, V)
        >>> step = model(torch.tensor([[4]]), cache=cache)  # (1, 1, V)
        >>> cache.length
        4
    """

    def __init__(self, n_layers: int) -> None:
        self.stores = [(DynamicKVStore(), CrossKVStore()) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Number of cached positions."""
        return self.stores[0][0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order; a row may be repeated."""
        for kv_store, source_store in self.stores:
            kv_store.select(rows)
            source_store.select(rows)


@dataclass
class RingKVStore:
    """Keys and values of self-attention in buffers of fixed size (B, G, C, Dh): new ones overwrite the oldest.

    The write positions are a tensor on the device, so a CUDA graph can be replayed for every step.
    """

    keys: Tensor
    values: Tensor
    write_positions: Tensor

    def update(self, project: Callable[[], KeyValue]) -> KeyValue:
        """Write the new keys and values over the oldest ones and return the whole buffers."""
        k, v = project()
        self.keys.index_copy_(2, self.write_positions, k)
        self.values.index_copy_(2, self.write_positions, v)
        return self.keys, self.values


class StaticKVCache:
    """A ring buffer for each layer and, in an encoder-decoder, the source: tensors (layers, 2, B, G, C, Dh)."""

    def __init__(self, buffers: Tensor, source_buffers: Tensor | None, write_positions: Tensor) -> None:
        self.length = 0  # the layout of the batch knows the positions
        sources = [None] * len(buffers) if source_buffers is None else [(k, v) for k, v in source_buffers]
        self.stores = [
            (RingKVStore(keys, values, write_positions), CrossKVStore(source_kv))
            for (keys, values), source_kv in zip(buffers, sources, strict=True)
        ]
