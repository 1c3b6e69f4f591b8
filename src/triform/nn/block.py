"""Residual, norm and sublayer, put together. The order of norm and residual is an object: no layer asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from triform.config import ModelConfig
from triform.nn.attention import Attention
from triform.nn.cache import LayerCache
from triform.nn.feedforward import FeedForward
from triform.nn.masks import Rule
from triform.nn.norm import NORMS
from triform.nn.positions import Relation

Sublayer = Callable[[Tensor], Tensor]


class Here(NamedTuple):
    """Where a layer stands in a forward pass: what may be read, where the tokens are, what is remembered."""

    rule: Rule
    positions: Tensor  # (T) or (B, T)
    cache: LayerCache


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

    def __init__(self, config: ModelConfig, relation: Relation) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm_position]
        self.attend, self.think = residual(config), residual(config)
        self.attention, self.feedforward = Attention(config, relation), FeedForward(config)

    def forward(self, x: Tensor, here: Here) -> Tensor:  # (B, T, D) -> (B, T, D)
        x = self.attend(x, lambda h: self.attention(h, h, here.rule, here.positions, here.cache.past))
        return self.think(x, self.feedforward)


class CrossBlock(nn.Module):
    """Self-attention, a look at the source, feedforward: a layer of a translating decoder."""

    def __init__(self, config: ModelConfig, relation: Relation) -> None:
        super().__init__()
        residual = RESIDUALS[config.norm_position]
        self.attend, self.consult, self.think = residual(config), residual(config), residual(config)
        unrelated = Relation(config, 0, causal=False)  # a distance between two texts means nothing
        self.attention, self.cross = Attention(config, relation), Attention(config, unrelated)
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor, here: Here, source: Tensor, source_rule: Rule) -> Tensor:
        x = self.attend(x, lambda h: self.attention(h, h, here.rule, here.positions, here.cache.past))
        x = self.consult(x, lambda h: self.cross(h, source, source_rule, here.positions, here.cache.source))
        return self.think(x, self.feedforward)
