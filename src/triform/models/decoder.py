"""The decoder: every token reads itself and what came before, and predicts what comes next."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.nn.block import NORMS, Block
from triform.nn.cache import NO_CACHE, Cache
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import causal, real, window


def vocabulary_head(config: ModelConfig, embedding: Embedding) -> nn.Linear:
    """Token scores from states; tied, it is the embedding read the other way."""
    head = nn.Linear(config.d_model, embedding.tokens.num_embeddings, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.tokens.weight
    return head


def positions_of(tokens: Tensor, cache: Cache | None) -> Tensor:  # (B, T) -> (T)
    """Positions of new tokens: after those that the cache has seen."""
    start = cache.length if cache else 0
    return torch.arange(start, start + tokens.shape[1], device=tokens.device)


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.reach = causal & window(config.window)
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, config.n_layers)

    def forward(
        self,
        tokens: Tensor,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, V)
        """`keep` covers the cached past too; `positions` are given where rows are padded on the left."""
        rule = self.reach & real(keep)
        x = self.embedding(tokens, positions_of(tokens, cache) if positions is None else positions)
        layers = cache.layers if cache else [NO_CACHE] * len(self.blocks)
        for block, layer in zip(self.blocks, layers, strict=True):
            x = block(x, rule, layer)
        return self.head(self.norm(x))
