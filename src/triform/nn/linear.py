"""Linear layers that say what they are for, so that initial weights need not know who owns them."""

from __future__ import annotations

from torch import nn


class Inward(nn.Linear):
    """Several projections of one input as one matrix: one product instead of many."""

    def __init__(self, width: int, each: int, *, parts: int, bias: bool) -> None:
        super().__init__(width, parts * each, bias=bias)
        self.parts = parts


class Outward(nn.Linear):
    """Writes to the residual stream, which adds up over all layers."""
