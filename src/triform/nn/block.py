"""Residual, norm and sublayer, put together. The order of norm and residual is an object: no layer asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.attention import Attention
from triform.nn.feedforward import FeedForward
from triform.nn.kv_cache import LayerKVCache
from triform.nn.masks import AttentionMask
from triform.nn.norm import NORMS
from triform.nn.positions import RelativePosition

Sublayer = Callable[[Tensor], Tensor]


class LayerContext(NamedTuple):
    """Where a layer stands in a forward pass: what may be read, where the tokens are, what is remembered."""

    mask: AttentionMask
    positions: Tensor  # (T) or (B, T)
    cache: LayerKVCache


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
    """Self-attention, then feed-forward: one layer of an encoder or of a decoder-only model."""

    def __init__(self, config: ModelConfig, relative_position: RelativePosition) -> None:
        super().__init__()
        build_norm = NORMS[config.norm]
        self.attn_norm, self.ffn_norm = build_norm(config), build_norm(config)
        self.attn, self.ffn = Attention(config, relative_position), FeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:  # (B, T, D) -> (B, T, D)
        mask, positions, cache = context
        x = self.residual(x, self.attn_norm, lambda h: self.attn(h, h, mask, positions, cache.past))
        return self.residual(x, self.ffn_norm, self.ffn)


class CrossBlock(nn.Module):
    """Self-attention, cross-attention to the source, then feed-forward: one layer of a translating decoder."""

    def __init__(self, config: ModelConfig, relative_position: RelativePosition) -> None:
        super().__init__()
        build_norm = NORMS[config.norm]
        self.attn_norm, self.cross_attn_norm, self.ffn_norm = (build_norm(config) for _ in range(3))
        no_position = RelativePosition(config, 0, causal=False)  # a distance between two texts means nothing
        self.attn, self.cross_attn = Attention(config, relative_position), Attention(config, no_position)
        self.ffn = FeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def forward(self, x: Tensor, context: LayerContext, source: Tensor, source_mask: AttentionMask) -> Tensor:
        mask, positions, cache = context
        x = self.residual(x, self.attn_norm, lambda h: self.attn(h, h, mask, positions, cache.past))
        x = self.residual(
            x, self.cross_attn_norm, lambda h: self.cross_attn(h, source, source_mask, positions, cache.source)
        )
        return self.residual(x, self.ffn_norm, self.ffn)
