"""Keys and values kept between decoding steps. The caller owns the cache; attention only asks it to read.

Attention hands over a function that projects the new keys and values. What happens next is the cache's
affair: `NoCache` uses them as they are, `Growing` appends them to the past, `Once` projects a source
sequence the first time and remembers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]  # each (B, G, S, Dh)


class Memory(Protocol):
    def read(self, project: Callable[[], KeysValues]) -> KeysValues: ...


class NoCache:
    def read(self, project: Callable[[], KeysValues]) -> KeysValues:
        return project()


@dataclass
class Growing:
    """Self-attention's past. Room doubles when it runs out, so appending is cheap."""

    length: int = 0
    room: Tensor | None = None  # (2, B, G, capacity, Dh)

    def read(self, project: Callable[[], KeysValues]) -> KeysValues:
        new = torch.stack(project())  # (2, B, G, T, Dh)
        end = self.length + new.shape[3]
        if self.room is None or end > self.room.shape[3]:
            self.room = self._grown(new, capacity=max(32, 2 * end))
        self.room[:, :, :, self.length : end] = new
        self.length = end
        return self.room[0, :, :, :end], self.room[1, :, :, :end]

    def _grown(self, new: Tensor, capacity: int) -> Tensor:
        kinds, rows, heads, _, width = new.shape
        room = new.new_empty(kinds, rows, heads, capacity, width)
        if self.room is not None:
            room[:, :, :, : self.length] = self.room[:, :, :, : self.length]
        return room

    def select(self, rows: Tensor) -> None:
        if self.room is not None:
            self.room = self.room.index_select(1, rows)


@dataclass
class Once:
    """Cross-attention's source: projected once, read at every step."""

    kept: KeysValues | None = None

    def read(self, project: Callable[[], KeysValues]) -> KeysValues:
        if self.kept is None:
            self.kept = project()
        return self.kept

    def select(self, rows: Tensor) -> None:
        if self.kept is not None:
            self.kept = self.kept[0].index_select(0, rows), self.kept[1].index_select(0, rows)


@dataclass
class LayerCache:
    """What one layer remembers: its own past and, in an encoder-decoder, the source."""

    past: Memory = field(default_factory=Growing)
    source: Memory = field(default_factory=Once)


NO_CACHE = LayerCache(past=NoCache(), source=NoCache())


class Cache:
    """One `LayerCache` a layer. `select` keeps, drops, repeats or reorders rows: beams and early finish."""

    def __init__(self, n_layers: int) -> None:
        self.parts = [(Growing(), Once()) for _ in range(n_layers)]
        self.layers = [LayerCache(past, source) for past, source in self.parts]

    @property
    def length(self) -> int:
        return self.parts[0][0].length

    def select(self, rows: Tensor) -> None:
        for past, source in self.parts:
            past.select(rows)
            source.select(rows)
