"""Norms: what keeps the states of every token at one scale."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from triform.config import ModelConfig

DEFAULT_EPS = {"layer": 1e-5, "rms": 1e-6}


def layer_norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.d_model, eps=config.norm_eps or DEFAULT_EPS["layer"], bias=config.bias)


class RMSNorm(nn.RMSNorm):
    """In the precision of its weights, as autocast has it for LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def rms_norm(config: ModelConfig) -> nn.Module:
    return RMSNorm(config.d_model, eps=config.norm_eps or DEFAULT_EPS["rms"])


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {"layer": layer_norm, "rms": rms_norm}
