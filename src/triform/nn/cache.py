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
        new = project()  # (B, G, T, Dh) each
        t = new[0].shape[2]
        end = self.length + t
        if self.room is None or end > self.room.shape[3]:
            self.room = self._grown(new[0], capacity=max(32, 2 * end))
        keys, values = self.room[0], self.room[1]
        keys.narrow(2, self.length, t).copy_(new[0])
        values.narrow(2, self.length, t).copy_(new[1])
        self.length = end
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def _grown(self, new: Tensor, capacity: int) -> Tensor:
        rows, heads, _, width = new.shape
        room = new.new_empty(2, rows, heads, capacity, width)
        if self.room is not None:
            room[:, :, :, : self.length] = self.room[:, :, :, : self.length]
        return room

    def select(self, rows: Tensor) -> None:
        """Only what is used is copied, and room for a few more."""
        if self.room is not None:
            self.room = self.room.narrow(3, 0, min(self.length + 32, self.room.shape[3])).index_select(1, rows)

    def kept(self) -> KeysValues:
        """All that was read so far."""
        assert self.room is not None
        return self.room[0, :, :, : self.length], self.room[1, :, :, : self.length]

    def interleave(self, size: int) -> None:
        """Every `size` rows become one, their keys side by side: (2, B, G, S · size, Dh)."""
        assert self.room is not None
        used = self.room[:, :, :, : self.length]
        apart = used.reshape(2, -1, size, *used.shape[2:])  # (2, B, size, G, S, Dh)
        self.room = apart.permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
        self.length *= size

    def extend(self, *, rows: int, front: int) -> None:
        """Room for so many rows more, and so many keys before the first (or fewer, where it is below zero)."""
        assert self.room is not None
        kinds, before, heads, _, width = self.room.shape
        used = self.room[:, :, :, max(0, -front) : self.length]
        self.length += front
        self.room = used.new_zeros(kinds, before + rows, heads, self.length + 32, width)
        self.room[:, :before, :, max(0, front) : self.length] = used

    def write(self, rows: Tensor, places: Tensor, new: KeysValues) -> None:  # (N), (P), (N, G, P, Dh) each
        """Lay these keys and values at places of some rows."""
        assert self.room is not None
        for room, kind in zip(self.room, new, strict=True):
            room[rows[:, None], :, places] = kind.transpose(1, 2)


@dataclass
class Ring:
    """Self-attention's past in a fixed room (B, G, C, Dh): the newest is written over the oldest.

    Where that is, only the device knows (`places`): nothing changes from step to step that a recorded graph would
    have to be told.
    """

    keys: Tensor
    values: Tensor
    places: Tensor

    def read(self, project: Callable[[], KeysValues]) -> KeysValues:
        k, v = project()
        self.keys.index_copy_(2, self.places, k)
        self.values.index_copy_(2, self.places, v)
        return self.keys, self.values


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

    def join(self, other: Once) -> None:
        """The other's rows after its own; the shorter ones are filled up."""
        if self.kept is not None and other.kept is not None:
            (k, v), (k2, v2) = self.kept, other.kept
            self.kept = _stacked(k, k2), _stacked(v, v2)

    def joint_keep(self, other: Once, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """Which tokens are real in the rows of both, (B + N, S); to be asked before they are joined."""
        if self.kept is None or other.kept is None:
            return None
        masks = [
            torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if known is None else known
            for known, (k, _) in ((keep, self.kept), (other_keep, other.kept))
        ]
        return _stacked(*(mask[:, None, :, None] for mask in masks))[:, 0, :, 0]


def _stacked(x: Tensor, y: Tensor) -> Tensor:  # (B, G, S, Dh), (N, G, S', Dh) -> (B + N, G, max, Dh)
    room = x.new_zeros(len(x) + len(y), x.shape[1], max(x.shape[2], y.shape[2]), x.shape[3])
    room[: len(x), :, : x.shape[2]] = x
    room[len(x) :, :, : y.shape[2]] = y
    return room


@dataclass
class LayerCache:
    """What one layer remembers: its own past and, in an encoder-decoder, the source."""

    past: Memory = field(default_factory=Growing)
    source: Memory = field(default_factory=Once)


NO_CACHE = LayerCache(past=NoCache(), source=NoCache())


class Rings:
    """A ring a layer and, in an encoder-decoder, its source in a fixed place: each (layers, 2, B, G, C, Dh)."""

    def __init__(self, room: Tensor, source: Tensor | None, places: Tensor) -> None:
        self.length = 0  # where tokens stand is told by their rows
        sources = [None] * len(room) if source is None else [(k, v) for k, v in source]
        self.layers = [
            LayerCache(Ring(keys, values, places), Once(kept))
            for (keys, values), kept in zip(room, sources, strict=True)
        ]


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

    def join_sources(self, other: Cache, keep: Tensor | None, other_keep: Tensor | None) -> Tensor | None:
        """The other's sources after its own, and which of all their tokens are real, (B + N, S)."""
        found = self.parts[0][1].joint_keep(other.parts[0][1], keep, other_keep)
        for (_, mine), (_, theirs) in zip(self.parts, other.parts, strict=True):
            mine.join(theirs)
        return found
