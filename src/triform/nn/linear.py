"""Linear layers that say what they are for, so that initial weights need not know who owns them."""

from __future__ import annotations

from torch import nn


class FusedLinear(nn.Linear):
    """Several projections of one input as one matrix: one product instead of many."""

    def __init__(self, in_features: int, out_features: int, *, n_projections: int, bias: bool) -> None:
        super().__init__(in_features, n_projections * out_features, bias=bias)
        self.n_projections = n_projections


class ResidualLinear(nn.Linear):
    """Writes to the residual stream, which adds up over all layers."""
