"""The encoder-decoder: one side reads the source, the other writes the target while looking at it."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import vocabulary_head, whereabouts
from triform.models.encoder import Encoder
from triform.nn.attention import Attention
from triform.nn.block import CrossBlock
from triform.nn.cache import Cache, Rings
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import reaches
from triform.nn.norm import NORMS
from triform.nn.positions import relation
from triform.nn.rows import Keep, rows_of


class Seq2Seq(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.reaches = reaches(config, causal=True)
        self.encoder = Encoder(config, sizes)
        self.embedding = Embedding(config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:  # one vocabulary: one table for both sides
            self.embedding.tokens = self.encoder.embedding.tokens
        self.blocks = nn.ModuleList(
            CrossBlock(config, relation(config, sizes.max_len, causal=True)) for _ in range(config.n_layers)
        )
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, config.n_layers)

    def forward(
        self, source: Tensor, target: Tensor, source_keep: Keep = None, target_keep: Keep = None
    ) -> Tensor:  # (B, S), (B, T) -> (B, T, V)
        return self.decode(target, self.encoder(source, source_keep), source_keep, target_keep=target_keep)

    def decode(
        self,
        target: Tensor,
        states: Tensor,
        source_keep: Keep = None,
        cache: Cache | Rings | None = None,
        target_keep: Keep = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, V)
        return self.head(self.decoded(target, states, source_keep, cache, target_keep))

    def decoded(
        self,
        target: Tensor,
        states: Tensor,
        source_keep: Keep = None,
        cache: Cache | Rings | None = None,
        target_keep: Keep = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, D)
        """Where one side is packed, so is the other. Padding after a target is its future: nothing need hide it."""
        rows = rows_of(target_keep)
        source_rule = rows_of(source_keep).read_by(rows)
        layers = whereabouts(self.reaches, rows, target, cache)
        x = self.embedding(target, layers[0].positions)
        for block, here in zip(self.blocks, layers, strict=True):
            x = block(x, here, states, source_rule)
        return self.norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        blocks = cast("list[CrossBlock]", list(self.blocks))
        own, cross = [block.attention for block in blocks], [block.cross for block in blocks]
        return {**self.encoder.attention_stacks(), "decoder": own, "cross": cross}
