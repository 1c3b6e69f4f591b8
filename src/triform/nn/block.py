"""One layer of a Transformer: attention and feed-forward, each with a norm and a residual connection.

The order of norm and residual is an object, so that no layer asks "pre or post?".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.attention import Attention, KVStore, RelativePosition
from triform.nn.initialisation import FusedLinear, ResidualLinear
from triform.nn.masks import AttentionMask
from triform.nn.norm import NORMS
from triform.nn.scores import SCORES

Sublayer = Callable[[Tensor], Tensor]


class SwiGLU(nn.Module):
    """Compute silu(gate) · value, where gate and value are the halves of the input."""

    def forward(self, x: Tensor) -> Tensor:  # (..., 2F) -> (..., F)
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class Activation(NamedTuple):
    """How to build an activation, and how many inputs it needs for one output."""

    build: Callable[[], nn.Module]
    n_inputs: int = 1


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(nn.ReLU),
    "gelu": Activation(nn.GELU),
    "gelu_tanh": Activation(partial(nn.GELU, approximate="tanh")),
    "silu": Activation(nn.SiLU),
    "swiglu": Activation(SwiGLU, n_inputs=2),
}


class FeedForward(nn.Module):
    """Project to `d_ff`, apply the activation, project back to `d_model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        build_activation, n_inputs = ACTIVATIONS[config.activation]
        self.up_proj = FusedLinear(config.d_model, config.d_ff, n_projections=n_inputs, bias=config.bias)
        self.activation = build_activation()
        self.down_proj = ResidualLinear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        return self.down_proj(self.activation(self.up_proj(x)))


class LayerContext(NamedTuple):
    """What a layer must know in one forward pass besides its input."""

    mask: AttentionMask
    positions: Tensor  # (T) or (B, T)
    kv_store: KVStore | None = None  # of self-attention
    source_store: KVStore | None = None  # of cross-attention


class PreNorm(nn.Module):
    """Compute `x + dropout(sublayer(norm(x)))`. The residual path stays clean: deep stacks train well."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, norm: nn.Module, sublayer: Sublayer) -> Tensor:
        return x + self.dropout(sublayer(norm(x)))


class PostNorm(PreNorm):
    """Compute `norm(x + dropout(sublayer(x)))`, the order of the original paper. It needs a warm-up."""

    def forward(self, x: Tensor, norm: nn.Module, sublayer: Sublayer) -> Tensor:
        return norm(x + self.dropout(sublayer(x)))


RESIDUALS: dict[str, type[PreNorm]] = {"pre": PreNorm, "post": PostNorm}


class Block(nn.Module):
    """Self-attention, then feed-forward: one layer of an encoder or of a decoder-only model.

    Example:
        >>> import torch
        >>> from triform.nn.masks import causal_mask
        >>> block = Block(ModelConfig(d_model=8, d_ff=16, n_heads=2))
        >>> block(torch.randn(3, 5, 8), LayerContext(causal_mask, torch.arange(5))).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, config: ModelConfig, relative_position: RelativePosition | None = None) -> None:
        super().__init__()
        build_norm = NORMS[config.norm]
        self.attn_norm, self.ffn_norm = build_norm(config), build_norm(config)
        self.attn = Attention(config, relative_position, SCORES[config.attention_score])
        self.ffn = FeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:  # (B, T, D) -> (B, T, D)
        mask, positions, kv_store, _ = context
        x = self.residual(x, self.attn_norm, lambda h: self.attn(h, h, mask, positions, kv_store))
        return self.residual(x, self.ffn_norm, self.ffn)


class CrossBlock(nn.Module):
    """Self-attention, cross-attention to the source, then feed-forward: one layer of a translating decoder."""

    def __init__(self, config: ModelConfig, relative_position: RelativePosition | None = None) -> None:
        super().__init__()
        build_norm, score_class = NORMS[config.norm], SCORES[config.attention_score]
        self.attn_norm, self.cross_attn_norm, self.ffn_norm = (build_norm(config) for _ in range(3))
        self.attn = Attention(config, relative_position, score_class)
        self.cross_attn = Attention(config, None, score_class)  # positions of two texts have no distance
        self.ffn = FeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def forward(self, x: Tensor, context: LayerContext, source: Tensor, source_mask: AttentionMask) -> Tensor:
        """Read `x` (B, T, D) and the encoder's states `source` (B, S, D); returns (B, T, D)."""
        mask, positions, kv_store, source_store = context
        x = self.residual(x, self.attn_norm, lambda h: self.attn(h, h, mask, positions, kv_store))
        x = self.residual(
            x, self.cross_attn_norm, lambda h: self.cross_attn(h, source, source_mask, positions, source_store)
        )
        return self.residual(x, self.ffn_norm, self.ffn)
