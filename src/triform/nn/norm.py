"""Normalisation layers, chosen by `model.norm`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from triform.config import ModelConfig

DEFAULT_EPS = {"layer": 1e-5, "rms": 1e-6}


class RMSNorm(nn.RMSNorm):
    """RMSNorm in the precision of its weights, as autocast does it for LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def build_layer_norm(config: ModelConfig) -> nn.Module:
    """Build a LayerNorm over `d_model`."""
    return nn.LayerNorm(config.d_model, eps=config.norm_eps or DEFAULT_EPS["layer"], bias=config.bias)


def build_rms_norm(config: ModelConfig) -> nn.Module:
    """Build an RMSNorm over `d_model`."""
    return RMSNorm(config.d_model, eps=config.norm_eps or DEFAULT_EPS["rms"])


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {"layer": build_layer_norm, "rms": build_rms_norm}
