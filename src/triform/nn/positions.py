"""Where a token stands, as a vector added to its embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Learned(nn.Module):
    """One trained vector a position."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def forward(self, positions: Tensor) -> Tensor:  # (..., T) -> (..., T, D)
        return self.table(positions)


class Sinusoidal(nn.Module):
    """sin(p · 10000^(-k/D)) for even k, cos(p · 10000^(-(k-1)/D)) for odd k."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(max_len, d_model), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:  # (..., T) -> (..., T, D)
        return self.table[positions]


def sinusoids(max_len: int, d_model: int) -> Tensor:
    """The table of fixed positions, computed in float64 so that far positions stay exact."""
    p = torch.arange(max_len, dtype=torch.float64)[:, None]
    k = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = p * 10000.0 ** (-k / d_model)  # (T, D/2)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (T, D)
    return table.to(torch.get_default_dtype())


POSITIONS = {"learned": Learned, "sinusoidal": Sinusoidal}
