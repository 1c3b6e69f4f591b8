"""The decoder: every token reads itself and what came before, and predicts what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.nn.attention import Attention
from triform.nn.block import Block, Here
from triform.nn.cache import NO_CACHE, Cache, Rings
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import Rule, reaches
from triform.nn.norm import NORMS
from triform.nn.positions import relation
from triform.nn.rows import Keep, Rows, rows_of


def vocabulary_head(config: ModelConfig, embedding: Embedding) -> nn.Linear:
    """Token scores from states; tied, it is the embedding read the other way."""
    head = nn.Linear(config.d_model, embedding.tokens.num_embeddings, bias=config.head_bias)
    if config.tie_embeddings:
        head.weight = embedding.tokens.weight
    return head


def whereabouts(
    reaches: Sequence[Rule],
    rows: Rows,
    tokens: Tensor,
    cache: Cache | Rings | None,
    positions: Tensor | None = None,
) -> list[Here]:
    """For each layer: what new tokens may read, where they stand (after those in the cache), what is kept."""
    if positions is None:
        positions = rows.positions(cache.length if cache else 0, tokens.shape[1], tokens.device)
    layers = cache.layers if cache else [NO_CACHE] * len(reaches)
    return [Here(rule, positions, layer) for rule, layer in zip(rows.rules(reaches), layers, strict=True)]


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.reaches = reaches(config, causal=True)
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(
            Block(config, relation(config, sizes.max_len, causal=True)) for _ in range(config.n_layers)
        )
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, config.n_layers)

    def forward(
        self,
        tokens: Tensor,
        keep: Keep = None,
        positions: Tensor | None = None,
        cache: Cache | Rings | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, V)
        return self.head(self.states(tokens, keep, positions, cache))

    def states(
        self,
        tokens: Tensor,
        keep: Keep = None,
        positions: Tensor | None = None,
        cache: Cache | Rings | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, D)
        """What the head reads. `keep` covers the cached past too; rows padded on the left have `positions`."""
        layers = whereabouts(self.reaches, rows_of(keep), tokens, cache, positions)
        x = self.embedding(tokens, layers[0].positions)
        for block, here in zip(self.blocks, layers, strict=True):
            x = block(x, here)
        return self.norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"decoder": [block.attention for block in cast("Iterable[Block]", self.blocks)]}
