"""The three forms as recurrent models, which are called and trained like the Transformers.

They share embedding, heads and attention over the source with them, so a task need not know which kind it has.
Between calls they keep a `RecurrentState` where Transformers keep a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import build_lm_head
from triform.models.encoder import build_classification_head
from triform.nn.attention import Attention
from triform.nn.embedding import InputEmbedding
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import POOLINGS, PaddedLayout, SequenceLayout, SequenceLayoutLike, as_layout
from triform.nn.loss import HeadLoss, lm_head_loss
from triform.nn.recurrent import BidirectionalLayer, RecurrentStack, RecurrentState, UnidirectionalLayer, cell_class
from triform.nn.scores import SCORES


class RecurrentEncoder(nn.Module):
    """Recurrent layers that read in both directions, or only forwards."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        is_unidirectional = config.attention_direction == "causal"
        # Width of the forward states.
        self.forward_size = config.d_model if is_unidirectional else config.d_model // 2
        self.embedding = InputEmbedding(config.as_single_head, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList(
            (UnidirectionalLayer if is_unidirectional else BidirectionalLayer)(config)
            for _ in range(config.n_layers)
        )

    def forward(self, tokens: Tensor, keep: SequenceLayoutLike = None) -> Tensor:  # (B, T) -> (B, T, D)
        """Return the states of the tokens."""
        layout = as_layout(keep)
        x = layout.to_padded(self.embedding(tokens, layout.positions(0, tokens.shape[1], tokens.device)))
        reverse_index = layout.reverse_index(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, reverse_index)
        return layout.from_padded(x)

    def final_states(self, layout: SequenceLayout, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
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

    def forward(self, tokens: Tensor, keep: SequenceLayoutLike = None) -> Tensor:  # (B, T) -> (B, labels)
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
        self, tokens: Tensor, keep: SequenceLayoutLike = None, recurrent_state: RecurrentState | None = None
    ) -> Tensor:
        return self.lm_head(self.hidden_states(tokens, keep, recurrent_state))  # (B, T, V)

    def hidden_states(
        self,
        tokens: Tensor,
        keep: SequenceLayoutLike = None,
        recurrent_state: RecurrentState | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:  # (B, T) -> (B, T, D)
        """Return the states that the head reads.

        Args:
            tokens: Token ids (B, T), padded on the right.
            keep: True for real tokens, or the layout of the batch.
            recurrent_state: The state to continue from; the final state is written to it.
            lengths: The lengths of the rows, needed to continue later from the end of each.
        """
        layout, recurrent_state = as_layout(keep), recurrent_state or RecurrentState()
        x = layout.to_padded(self.embedding(tokens, layout.positions(0, tokens.shape[1], tokens.device)))
        initial_state = self.blocks.zero_state(x) if recurrent_state.hidden is None else recurrent_state.hidden
        x, recurrent_state.hidden = self.blocks(x, initial_state, lengths)
        return layout.from_padded(x)

    def step(self, tokens: Tensor, recurrent_state: RecurrentState) -> Tensor:  # (B, size) -> (B, size, V)
        """Return the logits after one more token for each hypothesis, whose states lie side by side."""
        x = self.embedding(tokens, tokens)  # positions are not used
        return self.lm_head(step_hypotheses(self.blocks, x, recurrent_state))


def step_hypotheses(
    blocks: RecurrentStack, x: Tensor, recurrent_state: RecurrentState
) -> Tensor:  # (B, size, D) -> (B, size, D)
    """Read one token for each hypothesis, as a row of its own."""
    assert recurrent_state.hidden is not None, "nothing was read yet"
    y, recurrent_state.hidden = blocks(x.flatten(0, 1)[:, None], recurrent_state.hidden)
    return y.view(x.shape)


class RecurrentSeq2Seq(nn.Module):
    """A recurrent translator with attention over the encoder's states.

    The score is additive (Bahdanau, arXiv:1409.0473) or a dot product (Luong, arXiv:1508.04025). As in Luong's
    model, attention follows the cell, so that all tokens of a target are read in one call.
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        shared_config = config.as_single_head
        self.encoder = RecurrentEncoder(config, sizes)
        self.embedding = InputEmbedding(shared_config, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:
            self.embedding.token_embedding = self.encoder.embedding.token_embedding
        self.initial_state_proj = nn.Linear(
            config.d_model, config.n_layers * cell_class(config).n_state_vectors * config.d_model
        )
        self.blocks = RecurrentStack(config)
        self.cross_attn = Attention(shared_config, None, SCORES[config.attention_score])
        self.state_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = build_lm_head(config, self.embedding)
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, depth=0)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_keep: SequenceLayoutLike = None,
        target_keep: SequenceLayoutLike = None,
    ) -> Tensor:  # (B, S), (B, T) -> (B, T, V)
        encoder_states = self.encoder(source, source_keep)
        return self.lm_head(self.decoder_states(target, encoder_states, source_keep, target_keep=target_keep))

    def decoder_states(
        self,
        target: Tensor,
        encoder_states: Tensor,
        source_keep: SequenceLayoutLike = None,
        recurrent_state: RecurrentState | None = None,
        target_keep: SequenceLayoutLike = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, D)
        """Return the states that the head reads; final state and source are written to `recurrent_state`."""
        layout, source_layout, recurrent_state = (
            as_layout(target_keep),
            as_layout(source_keep),
            recurrent_state or RecurrentState(),
        )
        x = layout.to_padded(self.embedding(target, layout.positions(0, target.shape[1], target.device)))
        x, recurrent_state.hidden = self.blocks(x, self.initial_state(encoder_states, source_layout))
        return self._attend_source(layout.from_padded(x), encoder_states, source_layout, layout, recurrent_state)

    def initial_state(
        self, encoder_states: Tensor, source_layout: SequenceLayout
    ) -> Tensor:  # (B, S, D) -> (L, P, B, D)
        """Return the decoder's first state, computed from the final states of the encoder."""
        n_layers, n_vectors, width = self.blocks.state_shape
        initial = torch.tanh(
            self.initial_state_proj(self.encoder.final_states(source_layout, encoder_states))
        )  # (B, L · P · D)
        return initial.view(len(initial), n_layers, n_vectors, width).permute(1, 2, 0, 3).contiguous()

    def _attend_source(
        self,
        x: Tensor,
        encoder_states: Tensor,
        source_layout: SequenceLayout,
        layout: SequenceLayout,
        recurrent_state: RecurrentState,
    ) -> Tensor:  # (B, T, D) -> (B, T, D)
        """Return tanh(W c + U x), where c is what x reads of the source by attention."""
        context = self.cross_attn(
            x, encoder_states, source_layout.cross_attention_mask(layout), x, recurrent_state.source
        )
        return self.dropout(torch.tanh(context + self.state_proj(x)))

    def step(
        self, tokens: Tensor, recurrent_state: RecurrentState, source_keep: Tensor | None
    ) -> Tensor:  # (B, size) -> (B, size, V)
        """Return the logits after one more token for each hypothesis; those of a row share its source."""
        x = step_hypotheses(self.blocks, self.embedding(tokens, tokens), recurrent_state)
        no_states = x.new_empty(0)  # the recurrent state holds the keys and values of the source
        return self.lm_head(
            self._attend_source(x, no_states, PaddedLayout(source_keep), PaddedLayout(None), recurrent_state)
        )

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"cross": [self.cross_attn]}
