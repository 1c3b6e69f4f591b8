"""A shuffled order of all windows of token shards, which needs no memory for the windows.

The shards are shuffled and grouped into pools of `POOL_SHARDS`. The windows of a pool are drawn in the order of a
pseudorandom permutation, which is computed from the position. So only the shards of one pool are read at a time,
and the position in an epoch is one integer, however many windows there are. The order depends only on the sizes of
the shards, the seed and the epoch: neither on the number of processes nor on where the shards are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from triform.data.samplers import Indices

POOL_SHARDS = 8  # shards whose windows are mixed
ROUNDS = 6  # of the Feistel network; 4 already make a good permutation


def permute(values: Indices, size: int, keys: NDArray[np.uint64]) -> Indices:
    """Map numbers below `size` to numbers below `size`, no two to the same.

    The map is a Feistel network on the smallest square of a power of two that is not below `size`. Results outside
    the range are mapped again until they are inside it, which keeps the map a permutation.

    Args:
        values: The numbers.
        size: The number of different values.
        keys: Random numbers that select the permutation, one for each round.
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half_bits)) - 1)
    result = values.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        left, right = result[outside] >> half_bits, result[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        result[outside] = (left << half_bits) | right
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each number (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class ShuffledWindowSampler:
    """Sampler that draws every window of all shards once per epoch, in a shuffled order.

    Windows are numbered from 0 through all shards.

    Args:
        windows_per_shard: The number of windows of each shard.
        batch_size: Windows per batch. The last batch of an epoch may be smaller.
        seed: Random seed for shuffling.
        on_pool: Called with the shards of the current and the next pool when a pool begins, to prefetch them.
    """

    def __init__(
        self,
        windows_per_shard: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        on_pool: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.windows_per_shard = np.array(windows_per_shard, np.int64)
        self.first_windows = np.cumsum(self.windows_per_shard) - self.windows_per_shard
        self.n_windows = int(self.windows_per_shard.sum())
        self.batch_size, self.seed, self.on_pool = batch_size, seed, on_pool
        self.steps_per_epoch = -(-self.n_windows // batch_size)
        self.epoch, self.position = 0, 0
        self._pool = -1
        self._plan_epoch()

    def _plan_epoch(self) -> None:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.windows_per_shard))
        self._pools = [order[start : start + POOL_SHARDS] for start in range(0, len(order), POOL_SHARDS)]
        self._pool_ends = np.cumsum([int(self.windows_per_shard[pool].sum()) for pool in self._pools])
        self._pool = -1

    def next_batch(self) -> Indices:
        if self.position == self.n_windows:
            self.epoch, self.position = self.epoch + 1, 0
            self._plan_epoch()
        stop = min(self.position + self.batch_size, self.n_windows)
        parts: list[Indices] = []
        while self.position < stop:
            pool = int(np.searchsorted(self._pool_ends, self.position, side="right"))
            pool_stop = min(stop, int(self._pool_ends[pool]))
            parts.append(self._draw(pool, self.position, pool_stop))
            self.position = pool_stop
        return np.concatenate(parts)

    def _draw(self, pool: int, start: int, stop: int) -> Indices:
        """Return the windows at positions of the epoch that are in one pool."""
        if pool != self._pool:
            self._pool = pool
            key_source = np.random.default_rng([self.seed, self.epoch, pool])
            self._keys = key_source.integers(0, 1 << 64, size=ROUNDS, dtype=np.uint64)
            if self.on_pool is not None:
                self.on_pool([int(shard) for group in self._pools[pool : pool + 2] for shard in group])
        shards = self._pools[pool]
        shard_ends = np.cumsum(self.windows_per_shard[shards])
        pool_size = int(shard_ends[-1])
        positions = np.arange(start, stop) - (int(self._pool_ends[pool]) - pool_size)
        permuted = permute(positions, pool_size, self._keys)
        rows = np.searchsorted(shard_ends, permuted, side="right")
        within_shard = permuted - (shard_ends - self.windows_per_shard[shards])[rows]
        windows: Indices = self.first_windows[shards[rows]] + within_shard
        return windows

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        if self.position > self.n_windows:
            raise ValueError(f"sampler.position is {self.position}, but an epoch has {self.n_windows} windows")
        self._plan_epoch()
