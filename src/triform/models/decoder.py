"""The decoder: every token reads itself and what came before, and predicts what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.nn.attention import Attention
from triform.nn.block import Block, LayerContext
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.kv_cache import NO_LAYER_CACHE, KVCache, StaticKVCache
from triform.nn.layouts import BatchLayout, LayoutLike, as_layout
from triform.nn.masks import AttentionMask, build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position


def build_lm_head(config: ModelConfig, embedding: InputEmbedding) -> nn.Linear:
    """Token scores from states; tied, it is the embedding read the other way."""
    head = nn.Linear(config.d_model, embedding.token_embedding.num_embeddings, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.token_embedding.weight
    return head


def layer_contexts(
    layer_masks: Sequence[AttentionMask],
    layout: BatchLayout,
    tokens: Tensor,
    cache: KVCache | StaticKVCache | None,
    positions: Tensor | None = None,
) -> list[LayerContext]:
    """For each layer: what new tokens may read, where they stand (after those in the cache), what is kept."""
    if positions is None:
        positions = layout.positions(cache.length if cache else 0, tokens.shape[1], tokens.device)
    layer_caches = cache.layers if cache else [NO_LAYER_CACHE] * len(layer_masks)
    return [
        LayerContext(mask, positions, layer_cache)
        for mask, layer_cache in zip(layout.self_attention_masks(layer_masks), layer_caches, strict=True)
    ]


class Decoder(nn.Module):
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
        initialise_weights(self, config.n_layers)

    def forward(
        self,
        tokens: Tensor,
        keep: LayoutLike = None,
        positions: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, V)
        return self.lm_head(self.hidden_states(tokens, keep, positions, cache))

    def hidden_states(
        self,
        tokens: Tensor,
        keep: LayoutLike = None,
        positions: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, D)
        """What the head reads. `keep` covers the cached past too; rows padded on the left have `positions`."""
        contexts = layer_contexts(self.layer_masks, as_layout(keep), tokens, cache, positions)
        x = self.embedding(tokens, contexts[0].positions)
        for block, context in zip(self.blocks, contexts, strict=True):
            x = block(x, context)
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"decoder": [block.attn for block in cast("Iterable[Block]", self.blocks)]}
