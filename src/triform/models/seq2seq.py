"""The encoder-decoder: one side reads the source, the other writes the target while looking at it."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import build_lm_head, layer_contexts
from triform.models.encoder import Encoder
from triform.nn.attention import Attention
from triform.nn.block import CrossBlock
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.kv_cache import KVCache, StaticKVCache
from triform.nn.layouts import LayoutLike, as_layout
from triform.nn.masks import build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position


class Seq2Seq(nn.Module):
    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.layer_masks = build_layer_masks(config, causal=True)
        self.encoder = Encoder(config, sizes)
        self.embedding = InputEmbedding(config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:  # one vocabulary: one table for both sides
            self.embedding.token_embedding = self.encoder.embedding.token_embedding
        self.blocks = nn.ModuleList(
            CrossBlock(config, build_relative_position(config, sizes.max_len, causal=True))
            for _ in range(config.n_layers)
        )
        self.final_norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.lm_head = build_lm_head(config, self.embedding)
        initialise_weights(self, config.n_layers)

    def forward(
        self, source: Tensor, target: Tensor, source_keep: LayoutLike = None, target_keep: LayoutLike = None
    ) -> Tensor:  # (B, S), (B, T) -> (B, T, V)
        return self.decode(target, self.encoder(source, source_keep), source_keep, target_keep=target_keep)

    def decode(
        self,
        target: Tensor,
        encoder_states: Tensor,
        source_keep: LayoutLike = None,
        cache: KVCache | StaticKVCache | None = None,
        target_keep: LayoutLike = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, V)
        return self.lm_head(self.decoder_states(target, encoder_states, source_keep, cache, target_keep))

    def decoder_states(
        self,
        target: Tensor,
        encoder_states: Tensor,
        source_keep: LayoutLike = None,
        cache: KVCache | StaticKVCache | None = None,
        target_keep: LayoutLike = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, D)
        """Where one side is packed, so is the other. Padding after a target is its future: nothing need hide it."""
        layout = as_layout(target_keep)
        source_mask = as_layout(source_keep).cross_attention_mask(layout)
        contexts = layer_contexts(self.layer_masks, layout, target, cache)
        x = self.embedding(target, contexts[0].positions)
        for block, context in zip(self.blocks, contexts, strict=True):
            x = block(x, context, encoder_states, source_mask)
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        blocks = cast("list[CrossBlock]", list(self.blocks))
        self_attn, cross_attn = [block.attn for block in blocks], [block.cross_attn for block in blocks]
        return {**self.encoder.attention_stacks(), "decoder": self_attn, "cross": cross_attn}
