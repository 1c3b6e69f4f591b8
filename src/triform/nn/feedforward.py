"""The feedforward half of a block: widen, bend, narrow."""

from __future__ import annotations

from torch import Tensor, nn

from triform.config import ModelConfig

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]()
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        return self.down(self.activation(self.up(x)))
