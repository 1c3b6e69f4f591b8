"""The encoder-decoder: one side reads the source, the other writes the target while looking at it."""

from __future__ import annotations

from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import positions_of, vocabulary_head
from triform.models.encoder import Encoder
from triform.nn.block import NORMS, CrossBlock
from triform.nn.cache import NO_CACHE, Cache
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import causal, real, window


class Seq2Seq(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.reach = causal & window(config.window)
        self.encoder = Encoder(config, sizes)
        self.embedding = Embedding(config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:  # one vocabulary: one table for both sides
            self.embedding.tokens = self.encoder.embedding.tokens
        self.blocks = nn.ModuleList(CrossBlock(config) for _ in range(config.n_layers))
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, config.n_layers)

    def forward(
        self, source: Tensor, target: Tensor, source_keep: Tensor | None = None
    ) -> Tensor:  # (B, S), (B, T) -> (B, T, V)
        return self.decode(target, self.encoder(source, source_keep), source_keep)

    def decode(
        self, target: Tensor, states: Tensor, source_keep: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, V)
        x = self.embedding(target, positions_of(target, cache))
        source_rule = real(source_keep)
        layers = cache.layers if cache else [NO_CACHE] * len(self.blocks)
        for block, layer in zip(self.blocks, layers, strict=True):
            x = block(x, self.reach, states, source_rule, layer)
        return self.head(self.norm(x))
