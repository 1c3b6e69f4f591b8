"""Keys and values kept between decode steps. The caller owns the cache and passes it to the model.

A cache belongs to a model and has two stores for each layer. A store belongs to one attention module, which calls
`update` with a function that computes the new keys and values. `DynamicKVStore` (self-attention) appends them to
the earlier ones; `CrossKVStore` (cross-attention) calls the function once and keeps the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

KeyValue = tuple[Tensor, Tensor]  # each (B, G, S, Dh)


class KVStore(Protocol):
    """The cached keys and values of one attention module."""

    def update(self, project: Callable[[], KeyValue]) -> KeyValue:
        """Store the new keys and values, which `project` computes, and return all of them."""


class KVCacheLike(Protocol):
    """Interface of the cache of a whole model; `KVCache` and `StaticKVCache` implement it."""

    @property
    def length(self) -> int:
        """Number of cached positions."""

    @property
    def stores(self) -> Sequence[tuple[KVStore, KVStore]]:
        """The stores of self-attention and cross-attention of each layer."""


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


class KVCache:
    """The cache of a whole model: for each layer one store for self-attention and one for cross-attention.

    Example:
        >>> import torch
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
        for past, source in self.stores:
            past.select(rows)
            source.select(rows)
