"""Transformer blocks: sublayers with their norms and residual connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triform.config import ModelConfig
from triform.scratch.activations import ACTIVATIONS
from triform.scratch.attention import Masks, MultiHeadAttention, self_attention
from triform.scratch.layers import OptionalRng, build_layer_norm, build_linear, chain_backward, dropout
from triform.scratch.module import Array, Backward, Module, SharedInput

Sublayer = Callable[[Array], tuple[Array, Backward]]


class PositionwiseFeedForward(Module):
    """Two linear layers with an activation between them."""

    def __init__(self, config: ModelConfig) -> None:
        self.up_proj = build_linear(config.d_model, config.d_ff, bias=config.bias)
        self.activation: Any = ACTIVATIONS[config.activation]()
        self.down_proj = build_linear(config.d_ff, config.d_model, bias=config.bias)

    def __call__(self, x: Array) -> tuple[Array, Backward]:  # (B, T, D) -> (B, T, D)
        hidden, up_backward = self.up_proj(x)
        activated, activation_backward = self.activation(hidden)
        y, down_backward = self.down_proj(activated)
        return y, chain_backward([up_backward, activation_backward, down_backward])


class PreNormResidual(Module):
    """Pre-norm residual connection: x + dropout(f(norm(x)))."""

    def __init__(self, dropout: float) -> None:
        self.rate = dropout

    def __call__(self, x: Array, norm: Sublayer, sublayer: Sublayer, rng: OptionalRng) -> tuple[Array, Backward]:
        normed, norm_backward = norm(x)
        y, sublayer_backward = sublayer(normed)
        y, dropout_backward = dropout(y, self.rate, rng)

        def backward(dy: Array) -> Array:
            # The gradient of a sum goes to both summands: x gets dy itself and the gradient through f.
            dx = norm_backward(sublayer_backward(dropout_backward(dy)))
            dx += dy
            return dx

        return x + y, backward


class PostNormResidual(PreNormResidual):
    """Post-norm residual connection: norm(x + dropout(f(x)))."""

    def __call__(self, x: Array, norm: Sublayer, sublayer: Sublayer, rng: OptionalRng) -> tuple[Array, Backward]:
        y, sublayer_backward = sublayer(x)
        y, dropout_backward = dropout(y, self.rate, rng)
        normed, norm_backward = norm(x + y)

        def backward(dy: Array) -> Array:
            dy = norm_backward(dy)
            dx = sublayer_backward(dropout_backward(dy))
            dx += dy
            return dx

        return normed, backward


RESIDUALS: dict[str, type[PreNormResidual]] = {"pre": PreNormResidual, "post": PostNormResidual}


class TransformerBlock(Module):
    """Self-attention and feed-forward: a layer of an encoder or of a decoder without cross-attention."""

    def __init__(self, config: ModelConfig) -> None:
        self.attn_norm, self.ffn_norm = (build_layer_norm(config.d_model, bias=config.bias) for _ in range(2))
        self.attn, self.ffn = MultiHeadAttention(config), PositionwiseFeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def __call__(
        self, x: Array, masks: Masks, rng: OptionalRng
    ) -> tuple[Array, Backward]:  # (B, T, D) -> (B, T, D)
        x, attn_backward = self.residual(x, self.attn_norm, self_attention(self.attn, masks, rng), rng)
        x, ffn_backward = self.residual(x, self.ffn_norm, self.ffn, rng)
        return x, chain_backward([attn_backward, ffn_backward])


class CrossAttentionBlock(Module):
    """Self-attention, cross-attention and feed-forward: a decoder layer of an encoder-decoder."""

    def __init__(self, config: ModelConfig) -> None:
        self.attn_norm, self.cross_attn_norm, self.ffn_norm = (
            build_layer_norm(config.d_model, bias=config.bias) for _ in range(3)
        )
        self.attn, self.cross_attn = MultiHeadAttention(config), MultiHeadAttention(config)
        self.ffn = PositionwiseFeedForward(config)
        self.residual = RESIDUALS[config.norm_position](config.dropout)

    def __call__(
        self, x: Array, masks: Masks, source: SharedInput, source_masks: Masks, rng: OptionalRng
    ) -> tuple[Array, Backward]:
        def cross_attend(x: Array) -> tuple[Array, Backward]:
            y, attention_backward = self.cross_attn(x, source.value, source_masks, rng)

            def backward(dy: Array) -> Array:
                dx, d_source = attention_backward(dy)
                source.grad += d_source  # every layer of the decoder reads the same source
                return dx

            return y, backward

        x, attn_backward = self.residual(x, self.attn_norm, self_attention(self.attn, masks, rng), rng)
        x, cross_attn_backward = self.residual(x, self.cross_attn_norm, cross_attend, rng)
        x, ffn_backward = self.residual(x, self.ffn_norm, self.ffn, rng)
        return x, chain_backward([attn_backward, cross_attn_backward, ffn_backward])
