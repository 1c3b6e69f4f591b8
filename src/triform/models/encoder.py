"""The encoder: every token reads every token; one vector made of its states decides on a label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.nn.attention import Attention
from triform.nn.block import Block, LayerContext
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.kv_cache import NO_LAYER_CACHE
from triform.nn.layouts import POOLINGS, LayoutLike, as_layout
from triform.nn.masks import build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        causal = config.attention_direction == "causal"
        self.layer_masks = build_layer_masks(config, causal=causal)
        self.embedding = InputEmbedding(config, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(
            Block(config, build_relative_position(config, sizes.max_len, causal=causal))
            for _ in range(config.n_layers)
        )
        self.final_norm = NORMS[config.norm](config) if config.final_norm else nn.Identity()

    def forward(self, tokens: Tensor, keep: LayoutLike = None, segments: Tensor | None = None) -> Tensor:
        """States of tokens, (B, T) -> (B, T, D); `segments` (B, T), where the model knows some: else the first."""
        layout = as_layout(keep)
        positions = layout.positions(0, tokens.shape[1], tokens.device)
        x = self.embedding(tokens, positions, segments)
        for block, mask in zip(self.blocks, layout.self_attention_masks(self.layer_masks), strict=True):
            x = block(x, LayerContext(mask, positions, NO_LAYER_CACHE))
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"encoder": [block.attn for block in cast("Iterable[Block]", self.blocks)]}


def build_classification_head(config: ModelConfig, n_labels: int) -> nn.Module:
    if not config.head_hidden:
        return nn.Linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = nn.Linear(config.d_model, config.head_hidden)
    output = nn.Linear(config.head_hidden, n_labels, bias=config.head_bias)
    return nn.Sequential(hidden, HEAD_ACTIVATIONS[config.head_activation](), output)


HEAD_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Classifier(nn.Module):
    """Encoder, one vector made of the states of real tokens (`model.pooling`), label scores."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.encoder = Encoder(config, sizes)
        self.pool = POOLINGS[config.pooling]
        self.dropout = nn.Dropout(config.dropout)
        self.classification_head = build_classification_head(config, sizes.n_labels)
        initialise_weights(self, config.n_layers)

    def forward(self, tokens: Tensor, keep: LayoutLike = None, segments: Tensor | None = None) -> Tensor:
        layout = as_layout(keep)
        return self.classification_head(
            self.dropout(self.pool(layout, self.encoder(tokens, layout, segments)))
        )  # (B, labels)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return self.encoder.attention_stacks()
