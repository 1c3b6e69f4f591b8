"""Bins of lengths, for metrics by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triform.tasks.batch import length_ranges


@dataclass(frozen=True)
class LengthBins:
    """Bins of lengths.

    Args:
        edges: The largest length of each bin.
        open_ended: Add a bin for all lengths above the last edge.
    """

    edges: tuple[int, ...]
    open_ended: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the bins, such as "1 to 10"."""
        names = tuple(length_ranges(self.edges))
        return (*names, f"{self.edges[-1] + 1} or more") if self.open_ended else names

    def group(self, lengths: Sequence[int]) -> dict[str, list[int]]:
        """Return the indices of the lengths in each bin that is not empty."""
        indices: dict[str, list[int]] = {name: [] for name in self.names}
        for index, length in enumerate(lengths):
            indices[self.names[sum(length > edge for edge in self.edges)]].append(index)
        return {name: members for name, members in indices.items() if members}
