"""Residual, norm and sublayer, put together. The order of norm and residual is an object: no layer asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triform.config import ModelConfig
from triform.scratch.activations import ACTIVATIONS
from triform.scratch.attention import Attention, Masks, self_attention
from triform.scratch.layers import Chance, backwards, dropout, layer_norm, linear
from triform.scratch.part import Array, Back, Part, Source

Sublayer = Callable[[Array], tuple[Array, Back]]


class FeedForward(Part):
    """Widen, bend, narrow."""

    def __init__(self, config: ModelConfig) -> None:
        self.up = linear(config.d_model, config.d_ff, bias=config.bias)
        self.activation: Any = ACTIVATIONS[config.activation]()
        self.down = linear(config.d_ff, config.d_model, bias=config.bias)

    def __call__(self, x: Array) -> tuple[Array, Back]:  # (B, T, D) -> (B, T, D)
        wide, back_up = self.up(x)
        bent, back_bent = self.activation(wide)
        y, back_down = self.down(bent)
        return y, backwards([back_up, back_bent, back_down])


class PreNorm(Part):
    """x + dropout(f(norm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        self.norm: Any = layer_norm(config.d_model, bias=config.bias)
        self.rate = config.dropout

    def __call__(self, x: Array, sublayer: Sublayer, chance: Chance) -> tuple[Array, Back]:
        normed, back_norm = self.norm(x)
        y, back_sublayer = sublayer(normed)
        y, back_dropout = dropout(y, self.rate, chance)

        def back(d: Array) -> Array:
            # A sum hands its gradient to both summands: x gets d by itself, and what comes back through f.
            dx = back_norm(back_sublayer(back_dropout(d)))
            dx += d
            return dx

        return x + y, back


class PostNorm(PreNorm):
    """norm(x + dropout(f(x)))."""

    def __call__(self, x: Array, sublayer: Sublayer, chance: Chance) -> tuple[Array, Back]:
        y, back_sublayer = sublayer(x)
        y, back_dropout = dropout(y, self.rate, chance)
        normed, back_norm = self.norm(x + y)

        def back(d: Array) -> Array:
            d = back_norm(d)
            dx = back_sublayer(back_dropout(d))
            dx += d
            return dx

        return normed, back


RESIDUALS: dict[str, type[PreNorm]] = {"pre": PreNorm, "post": PostNorm}


class Block(Part):
    """Self-attention, then feedforward: a layer of an encoder or of a decoder that reads only itself."""

    def __init__(self, config: ModelConfig) -> None:
        residual = RESIDUALS[config.norm_position]
        self.attend, self.think = residual(config), residual(config)
        self.attention, self.feedforward = Attention(config), FeedForward(config)

    def __call__(self, x: Array, masks: Masks, chance: Chance) -> tuple[Array, Back]:  # (B, T, D) -> (B, T, D)
        x, back_attend = self.attend(x, self_attention(self.attention, masks, chance), chance)
        x, back_think = self.think(x, self.feedforward, chance)
        return x, backwards([back_attend, back_think])


class CrossBlock(Part):
    """Self-attention, a look at the source, feedforward: a layer of a translating decoder."""

    def __init__(self, config: ModelConfig) -> None:
        residual = RESIDUALS[config.norm_position]
        self.attend, self.consult, self.think = residual(config), residual(config), residual(config)
        self.attention, self.cross = Attention(config), Attention(config)
        self.feedforward = FeedForward(config)

    def __call__(
        self, x: Array, masks: Masks, source: Source, source_masks: Masks, chance: Chance
    ) -> tuple[Array, Back]:
        def look(x: Array) -> tuple[Array, Back]:
            y, back_both = self.cross(x, source.value, source_masks, chance)

            def back(dy: Array) -> Array:
                dx, d_source = back_both(dy)
                source.grad += d_source  # every layer of the decoder reads the same source
                return dx

            return y, back

        x, back_attend = self.attend(x, self_attention(self.attention, masks, chance), chance)
        x, back_consult = self.consult(x, look, chance)
        x, back_think = self.think(x, self.feedforward, chance)
        return x, backwards([back_attend, back_consult, back_think])
