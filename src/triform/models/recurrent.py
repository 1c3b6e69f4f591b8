"""The three forms as recurrent models, which are called and trained like the Transformers.

They share embedding, heads and attention over the source with the Transformers, so a task need not know which kind
it has. Between calls they keep a `RecurrentState` where Transformers keep a KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import build_lm_head
from triform.models.encoder import build_classification_head
from triform.nn.attention import Attention, KVStore
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import POOLINGS, BatchLayout, LayoutLike, as_layout
from triform.nn.loss import HeadLoss, lm_head_loss
from triform.nn.masks import AttentionMask
from triform.nn.recurrent import BidirectionalLayer, RecurrentStack, RecurrentState, UnidirectionalLayer, cell_class
from triform.nn.scores import SCORES


class RecurrentEncoder(nn.Module):
    """Recurrent layers that read in both directions, or only forwards."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        is_causal = config.attention_direction == "causal"
        layer_class = UnidirectionalLayer if is_causal else BidirectionalLayer
        self.forward_size = config.d_model if is_causal else config.d_model // 2  # width of the forward states
        self.embedding = InputEmbedding(config.as_single_head, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(layer_class(config) for _ in range(config.n_layers))

    def forward(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:  # (B, T) -> (B, T, D)
        """Return the states of the tokens."""
        layout = as_layout(keep)
        x = layout.to_padded(self.embedding(tokens, layout.positions(0, tokens.shape[1], tokens.device)))
        reverse_index = layout.reverse_index(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, reverse_index)
        return layout.from_padded(x)

    def final_states(self, layout: BatchLayout, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """Return the final state of each sequence: the last forward and the first backward state."""
        return torch.cat([layout.last(x)[:, : self.forward_size], layout.first(x)[:, self.forward_size :]], dim=-1)


class RecurrentClassifier(nn.Module):
    """A text classifier: recurrent encoder, pooling (`last` takes the final states), label logits."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(config, sizes)
        self.pool = self.encoder.final_states if config.pooling == "last" else POOLINGS[config.pooling]
        self.dropout = nn.Dropout(config.dropout)
        self.classification_head = build_classification_head(config, sizes.n_labels)
        initialise_weights(self, depth=0)

    def forward(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:  # (B, T) -> (B, labels)
        layout = as_layout(keep)
        return self.classification_head(self.dropout(self.pool(layout, self.encoder(tokens, layout))))


class RecurrentDecoder(nn.Module):
    """A recurrent language model."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.embedding = InputEmbedding(config.as_single_head, sizes.vocab_size, sizes.max_len)
        self.blocks = RecurrentStack(config)
        self.lm_head = build_lm_head(config, self.embedding)
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, depth=0)

    def forward(
        self, tokens: Tensor, keep: LayoutLike = None, recurrent_state: RecurrentState | None = None
    ) -> Tensor:
        """Return the logits (B, T, V) of the token after each position; see `hidden_states`."""
        return self.lm_head(self.hidden_states(tokens, keep, recurrent_state))

    def hidden_states(
        self,
        tokens: Tensor,
        keep: LayoutLike = None,
        recurrent_state: RecurrentState | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the states (B, T, D) that the head reads.

        Args:
            tokens: Token ids (B, T), padded on the right.
            keep: True for real tokens, or the layout of the batch.
            recurrent_state: The state to continue from; the final state is written to it.
            lengths: The lengths of the rows, needed to continue later from the end of each.
        """
        layout, state = as_layout(keep), recurrent_state or RecurrentState()
        x = layout.to_padded(self.embedding(tokens, layout.positions(0, tokens.shape[1], tokens.device)))
        x, state.hidden = self.blocks(x, state.hidden, lengths)
        return layout.from_padded(x)


class RecurrentSeq2Seq(nn.Module):
    """A recurrent translator with attention over the encoder's states.

    The score is additive (Bahdanau, arXiv:1409.0473) or a dot product (Luong, arXiv:1508.04025). As in Luong's
    model, attention follows the cell, so that all tokens of a target are read in one call.
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        shared_config, width = config.as_single_head, config.d_model
        self.encoder = RecurrentEncoder(config, sizes)
        self.embedding = InputEmbedding(shared_config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:
            self.embedding.token_embedding = self.encoder.embedding.token_embedding
        self.initial_state_proj = nn.Linear(width, config.n_layers * cell_class(config).n_state_vectors * width)
        self.blocks = RecurrentStack(config)
        self.cross_attn = Attention(shared_config, None, SCORES[config.attention_score])
        self.state_proj = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = build_lm_head(config, self.embedding)
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, depth=0)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_keep: LayoutLike = None,
        target_keep: LayoutLike = None,
    ) -> Tensor:
        """Return the logits (B, T, V) of the token after each position; for the arguments see `Seq2Seq.forward`."""
        encoder_states = self.encoder(source, source_keep)
        return self.lm_head(self.decoder_states(target, encoder_states, source_keep, target_keep=target_keep))

    def decoder_states(
        self,
        target: Tensor,
        encoder_states: Tensor,
        source_keep: LayoutLike = None,
        recurrent_state: RecurrentState | None = None,
        target_keep: LayoutLike = None,
    ) -> Tensor:
        """Return the states (B, T, D) that the head reads; the final state is written to `recurrent_state`."""
        layout, source_layout = as_layout(target_keep), as_layout(source_keep)
        state = recurrent_state or RecurrentState()
        x = layout.to_padded(self.embedding(target, layout.positions(0, target.shape[1], target.device)))
        x, state.hidden = self.blocks(x, self.initial_state(encoder_states, source_layout))
        mask = source_layout.cross_attention_mask(layout)
        return self.attend_source(layout.from_padded(x), encoder_states, mask, state.source_store)

    def initial_state(self, encoder_states: Tensor, source_layout: BatchLayout) -> Tensor:  # -> (L, P, B, D)
        """Return the decoder's first state, computed from the final states of the encoder (B, S, D)."""
        final_states = self.encoder.final_states(source_layout, encoder_states)
        initial = torch.tanh(self.initial_state_proj(final_states))  # (B, L · P · D)
        return initial.view(len(initial), *self.blocks.state_shape).permute(1, 2, 0, 3).contiguous()

    def attend_source(
        self, x: Tensor, encoder_states: Tensor, mask: AttentionMask, source_store: KVStore | None = None
    ) -> Tensor:  # (B, T, D), (B, S, D) -> (B, T, D)
        """Return tanh(W c + U x), where c is the attention of x over the source."""
        context = self.cross_attn(x, encoder_states, mask, x, source_store)
        return self.dropout(torch.tanh(context + self.state_proj(x)))

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack."""
        return {"cross": [self.cross_attn]}
