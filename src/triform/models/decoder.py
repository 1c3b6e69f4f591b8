"""The decoder: every token reads itself and the tokens before it, and predicts the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.nn.attention import Attention, KVStore
from triform.nn.block import Block, LayerContext
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import BatchLayout, LayoutLike, as_layout
from triform.nn.loss import HeadLoss, lm_head_loss
from triform.nn.masks import AttentionMask, build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position


class KVCacheLike(Protocol):
    """The keys and values of earlier tokens; `generation/kv_cache.py` has the caches."""

    @property
    def length(self) -> int:
        """Number of cached positions."""

    @property
    def stores(self) -> Sequence[tuple[KVStore, KVStore]]:
        """The stores of self-attention and cross-attention of each layer."""


def build_lm_head(config: ModelConfig, embedding: InputEmbedding) -> nn.Linear:
    """Build the layer that turns states into token logits; tied, it shares the weights of the embedding."""
    head = nn.Linear(config.d_model, embedding.token_embedding.num_embeddings, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.token_embedding.weight
    return head


def layer_contexts(
    layer_masks: Sequence[AttentionMask], layout: BatchLayout, tokens: Tensor, cache: KVCacheLike | None
) -> list[LayerContext]:
    """Return the context of each layer for new tokens (B, T), which follow those in the cache."""
    positions = layout.positions(cache.length if cache else 0, tokens.shape[1], tokens.device)
    masks = layout.self_attention_masks(layer_masks)
    if cache is None:
        return [LayerContext(mask, positions) for mask in masks]
    return [LayerContext(mask, positions, *stores) for mask, stores in zip(masks, cache.stores, strict=True)]


class Decoder(nn.Module):
    """A language model.

    Example:
        >>> import torch
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = Decoder(config, DataSizes(vocab_size=100, max_len=16))
        >>> model(torch.tensor([[1, 2, 3]])).shape  # logits (B, T, V)
        torch.Size([1, 3, 100])
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.layer_masks = build_layer_masks(config, causal=True)
        self.embedding = InputEmbedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(
            Block(config, build_relative_position(config, sizes.max_len, causal=True))
            for _ in range(config.n_layers)
        )
        self.final_norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.lm_head = build_lm_head(config, self.embedding)
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, config.n_layers)

    def forward(self, tokens: Tensor, keep: LayoutLike = None, cache: KVCacheLike | None = None) -> Tensor:
        """Return the logits (B, T, V) of the token after each position; for the arguments see `hidden_states`."""
        return self.lm_head(self.hidden_states(tokens, keep, cache))

    def hidden_states(self, tokens: Tensor, keep: LayoutLike = None, cache: KVCacheLike | None = None) -> Tensor:
        """Return the states (B, T, D) that the head reads.

        Args:
            tokens: Token ids (B, T).
            keep: True for real tokens (B, S), those in the cache included, padded on the right; or the layout of
                the batch.
            cache: Keys and values of earlier tokens; the new ones are added.
        """
        contexts = layer_contexts(self.layer_masks, as_layout(keep), tokens, cache)
        x = self.embedding(tokens, contexts[0].positions)
        for block, context in zip(self.blocks, contexts, strict=True):
            x = block(x, context)
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack."""
        return {"decoder": [block.attn for block in cast("Iterable[Block]", self.blocks)]}
