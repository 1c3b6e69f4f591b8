"""The encoder, in which every token reads every token, and the classifier on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.nn.attention import Attention
from triform.nn.block import Block, LayerContext
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import POOLINGS, LayoutLike, as_layout
from triform.nn.masks import build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position

HEAD_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class Encoder(nn.Module):
    """The body of a classifier, and the source side of a translator."""

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
        """Return the states (B, T, D) of tokens (B, T).

        Args:
            tokens: Token ids.
            keep: True for real tokens (B, T); or the layout of the batch.
            segments: Segment ids (B, T) for models with segments; None means the first.
        """
        layout = as_layout(keep)
        positions = layout.positions(0, tokens.shape[1], tokens.device)
        x = self.embedding(tokens, positions, segments)
        for block, mask in zip(self.blocks, layout.self_attention_masks(self.layer_masks), strict=True):
            x = block(x, LayerContext(mask, positions))
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack."""
        return {"encoder": [block.attn for block in cast("Iterable[Block]", self.blocks)]}


def build_classification_head(config: ModelConfig, n_labels: int) -> nn.Module:
    """Build the layer that turns a pooled state into label logits, with a hidden layer if configured."""
    if not config.head_hidden:
        return nn.Linear(config.d_model, n_labels, bias=config.head_bias)
    hidden = nn.Linear(config.d_model, config.head_hidden)
    output = nn.Linear(config.head_hidden, n_labels, bias=config.head_bias)
    return nn.Sequential(hidden, HEAD_ACTIVATIONS[config.head_activation](), output)


class Classifier(nn.Module):
    """A text classifier: encoder, pooling over the real tokens (`model.pooling`), label logits.

    Example:
        >>> import torch
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = Classifier(config, DataSizes(vocab_size=100, max_len=16, n_labels=3))
        >>> model(torch.tensor([[1, 2, 3]])).shape  # logits (B, labels)
        torch.Size([1, 3])
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.encoder = Encoder(config, sizes)
        self.pool = POOLINGS[config.pooling]
        self.dropout = nn.Dropout(config.dropout)
        self.classification_head = build_classification_head(config, sizes.n_labels)
        initialise_weights(self, config.n_layers)

    def forward(self, tokens: Tensor, keep: LayoutLike = None, segments: Tensor | None = None) -> Tensor:
        """Return label logits (B, labels); for the arguments see `Encoder.forward`."""
        layout = as_layout(keep)
        pooled = self.pool(layout, self.encoder(tokens, layout, segments))  # (B, D)
        return self.classification_head(self.dropout(pooled))

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack."""
        return self.encoder.attention_stacks()
