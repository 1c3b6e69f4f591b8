"""The encoder-decoder: the encoder reads the source, the decoder writes the target while reading the source."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import KVCacheLike, build_lm_head, layer_contexts
from triform.models.encoder import Encoder
from triform.nn.attention import Attention
from triform.nn.block import CrossBlock
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import LayoutLike, as_layout
from triform.nn.loss import HeadLoss, lm_head_loss
from triform.nn.masks import build_layer_masks
from triform.nn.norm import NORMS
from triform.nn.positions import build_relative_position


class Seq2Seq(nn.Module):
    """A translator.

    Example:
        >>> import torch
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = Seq2Seq(config, DataSizes(vocab_size=100, max_len=16))
        >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape  # logits (B, T, V)
        torch.Size([1, 2, 100])
    """

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
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, config.n_layers)

    def forward(
        self, source: Tensor, target: Tensor, source_keep: LayoutLike = None, target_keep: LayoutLike = None
    ) -> Tensor:
        """Return the logits (B, T, V) of the token after each position of the target.

        Args:
            source: Source tokens (B, S).
            target: Target tokens (B, T), the begin token first.
            source_keep: True for real source tokens (B, S); or the layout of the sources.
            target_keep: The same for the targets. Padding after a target needs no mask: it is in the future.
        """
        encoder_states = self.encoder(source, source_keep)
        return self.lm_head(self.decoder_states(target, encoder_states, source_keep, target_keep=target_keep))

    def decoder_states(
        self,
        target: Tensor,
        encoder_states: Tensor,
        source_keep: LayoutLike = None,
        cache: KVCacheLike | None = None,
        target_keep: LayoutLike = None,
    ) -> Tensor:
        """Return the states (B, T, D) that the head reads, from the encoder's states (B, S, D).

        The cache holds earlier target tokens. If one side is packed, so is the other.
        """
        layout = as_layout(target_keep)
        source_mask = as_layout(source_keep).cross_attention_mask(layout)
        contexts = layer_contexts(self.layer_masks, layout, target, cache)
        x = self.embedding(target, contexts[0].positions)
        for block, context in zip(self.blocks, contexts, strict=True):
            x = block(x, context, encoder_states, source_mask)
        return self.final_norm(x)

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack."""
        blocks = cast("list[CrossBlock]", list(self.blocks))
        self_attn, cross_attn = [block.attn for block in blocks], [block.cross_attn for block in blocks]
        return {**self.encoder.attention_stacks(), "decoder": self_attn, "cross": cross_attn}
