"""The encoder: every token reads every token; one vector made of its states decides on a label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.nn.attention import Attention
from triform.nn.block import Block, Here
from triform.nn.cache import NO_CACHE
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.masks import reaches
from triform.nn.norm import NORMS
from triform.nn.positions import relation
from triform.nn.rows import POOLINGS, Keep, rows_of


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        causal = config.reach == "causal"
        self.reaches = reaches(config, causal=causal)
        self.embedding = Embedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(
            Block(config, relation(config, sizes.max_len, causal=causal)) for _ in range(config.n_layers)
        )
        self.norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()

    def forward(self, tokens: Tensor, keep: Keep = None, segments: Tensor | None = None) -> Tensor:
        """States of tokens, (B, T) -> (B, T, D); `segments` (B, T), where the model knows some: else the first."""
        rows = rows_of(keep)
        positions = rows.positions(0, tokens.shape[1], tokens.device)
        x = self.embedding(tokens, positions, segments)
        for block, rule in zip(self.blocks, rows.rules(self.reaches), strict=True):
            x = block(x, Here(rule, positions, NO_CACHE))
        return self.norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"encoder": [block.attention for block in cast("Iterable[Block]", self.blocks)]}


def label_head(config: ModelConfig, n_labels: int) -> nn.Module:
    if not config.head_hidden:
        return nn.Linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = nn.Linear(config.d_model, config.head_hidden)
    labels = nn.Linear(config.head_hidden, n_labels, bias=config.head_bias)
    return nn.Sequential(hidden, HEAD_ACTIVATIONS[config.head_activation](), labels)


HEAD_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Classifier(nn.Module):
    """Encoder, one vector made of the states of real tokens (`model.pooling`), label scores."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = Encoder(config, sizes)
        self.pool = POOLINGS[config.pooling]
        self.dropout = nn.Dropout(config.dropout)
        self.head = label_head(config, sizes.n_labels)
        initialise(self, config.n_layers)

    def forward(self, tokens: Tensor, keep: Keep = None, segments: Tensor | None = None) -> Tensor:
        rows = rows_of(keep)
        return self.head(self.dropout(self.pool(rows, self.encoder(tokens, rows, segments))))  # (B, labels)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return self.encoder.attention_stacks()
