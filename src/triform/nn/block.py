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
    """x + dropout(f(norm(x))): the residual path stays clean, deep stacks train from the start."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = NORMS[config.norm](config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class PostNorm(PreNorm):
    """norm(x + dropout(f(x))): the order of the original paper; wants warm-up."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


RESIDUALS: dict[str, type[PreNorm]] = {"pre": PreNorm, "post": PostNorm}


class Block(nn.Module):
    """Self-attention, then feedforward: a layer of an encoder or of a decoder that reads only itself."""

    def __init__(self, config: ModelConfig, relative_position: RelativePosition) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm_position]
        self.attn_norm, self.ffn_norm = residual(config), residual(config)
        self.attn, self.ffn = Attention(config, relative_position), FeedForward(config)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:  # (B, T, D) -> (B, T, D)
        x = self.attn_norm(x, lambda h: self.attn(h, h, context.mask, context.positions, context.cache.past))
        return self.ffn_norm(x, self.ffn)


class CrossBlock(nn.Module):
    """Self-attention, a look at the source, feedforward: a layer of a translating decoder."""

    def __init__(self, config: ModelConfig, relative_position: RelativePosition) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm_position]
        self.attn_norm, self.cross_attn_norm, self.ffn_norm = residual(config), residual(config), residual(config)
        no_position = RelativePosition(config, 0, causal=False)  # a distance between two texts means nothing
        self.attn, self.cross_attn = Attention(config, relative_position), Attention(config, no_position)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, context: LayerContext, source: Tensor, source_mask: AttentionMask) -> Tensor:
        x = self.attn_norm(x, lambda h: self.attn(h, h, context.mask, context.positions, context.cache.past))
        x = self.cross_attn_norm(
            x, lambda h: self.cross_attn(h, source, source_mask, context.positions, context.cache.source)
        )
        return self.ffn_norm(x, self.ffn)
