"""Key/value caches of fixed shape and address, for decoding steps that are replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from triform.nn.kv_cache import CrossKVStore, KeyValue


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
