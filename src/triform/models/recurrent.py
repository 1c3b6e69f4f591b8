"""The three forms as recurrent models: what came before Transformers, called and trained as they are.

They have the same parts around their layers (embedding, heads, one attention over a source), so a task need not
know which kind it has. What they remember between calls is a `Carry`, where Transformers have a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from triform.config import ModelConfig, Sizes
from triform.models.decoder import vocabulary_head
from triform.models.encoder import label_head
from triform.nn.attention import Attention
from triform.nn.embedding import Embedding
from triform.nn.init import initialise
from triform.nn.positions import Relation
from triform.nn.recurrent import BothWays, Carry, Forwards, OneWay, cell_of
from triform.nn.rows import POOLINGS, Keep, Packed, Padded, Rows, rows_of


def _laid(keep: Keep) -> Padded | Packed:
    rows = rows_of(keep)
    assert isinstance(rows, Padded | Packed), "hypotheses are read by `step`"
    return rows


class RecurrentEncoder(nn.Module):
    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        one_way = config.reach == "causal"
        self.reads_ahead = config.d_model if one_way else config.d_model // 2  # what reads forwards
        self.embedding = Embedding(config.for_shared_parts, sizes.vocab_size, sizes.max_len)
        self.blocks = nn.ModuleList((OneWay if one_way else BothWays)(config) for _ in range(config.n_layers))

    def forward(self, tokens: Tensor, keep: Keep = None) -> Tensor:  # (B, T) -> (B, T, D)
        """What each token is in its text, read from both sides."""
        rows = _laid(keep)
        x = rows.apart(self.embedding(tokens, rows.positions(0, tokens.shape[1], tokens.device)))
        back = rows.backwards(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, back)
        return rows.together(x)

    def ends(self, rows: Rows, x: Tensor) -> Tensor:  # (B, T, D) -> (rows, D)
        """What was known of each row when all of it had been read: forwards its last state, backwards its first."""
        return torch.cat([rows.last(x)[:, : self.reads_ahead], rows.first(x)[:, self.reads_ahead :]], dim=-1)


class RecurrentClassifier(nn.Module):
    """Encoder, the mean of the states of real tokens (or what was known at the ends), label scores."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(config, sizes)
        self.pool = self.encoder.ends if config.pooling == "last" else POOLINGS[config.pooling]
        self.dropout = nn.Dropout(config.dropout)
        self.head = label_head(config, sizes.n_labels)
        initialise(self, depth=0)

    def forward(self, tokens: Tensor, keep: Keep = None) -> Tensor:  # (B, T) -> (B, labels)
        rows = _laid(keep)
        return self.head(self.dropout(self.pool(rows, self.encoder(tokens, rows))))


class RecurrentDecoder(nn.Module):
    """A language model: every state has read what came before it, however long that is."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(config.for_shared_parts, sizes.vocab_size, sizes.max_len)
        self.blocks = Forwards(config)
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, depth=0)

    def forward(self, tokens: Tensor, keep: Keep = None, carry: Carry | None = None) -> Tensor:
        return self.head(self.states(tokens, keep, carry))  # (B, T, V)

    def states(
        self, tokens: Tensor, keep: Keep = None, carry: Carry | None = None, lengths: Sequence[int] | None = None
    ) -> Tensor:  # (B, T) -> (B, T, D)
        """What the head reads. With a `carry` it goes on from there, and leaves there what it knows at the end.

        Rows are padded at their ends; a carry that is to go on from theirs needs their `lengths`.
        """
        rows, carry = _laid(keep), carry or Carry()
        x = rows.apart(self.embedding(tokens, rows.positions(0, tokens.shape[1], tokens.device)))
        before = self.blocks.nothing(x) if carry.state is None else carry.state
        x, carry.state = self.blocks(x, before, lengths)
        return rows.together(x)

    def step(self, tokens: Tensor, carry: Carry) -> Tensor:  # (B, size) -> (B, size, V)
        """One more token for each hypothesis, whose states lie side by side in the carry."""
        x = self.embedding(tokens, tokens)  # where it stands says nothing here
        return self.head(said_next(self.blocks, x, carry))


def said_next(blocks: Forwards, x: Tensor, carry: Carry) -> Tensor:  # (B, size, D) -> (B, size, D)
    """Each hypothesis as a row that goes on by one token."""
    assert carry.state is not None, "nothing was read yet"
    y, carry.state = blocks(x.flatten(0, 1)[:, None], carry.state)
    return y.view(x.shape)


class RecurrentSeq2Seq(nn.Module):
    """An encoder's states, looked at by attention after every state of the decoder.

    The score is additive (Bahdanau, arXiv:1409.0473) or a product of what two matrices make of both (Luong,
    arXiv:1508.04025). What is read joins the state after the cell, as Luong has it, not before: so all tokens of a
    target are one call of the cell.
    """

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        plain = config.for_shared_parts
        self.encoder = RecurrentEncoder(config, sizes)
        self.embedding = Embedding(plain, sizes.target_vocab_size or sizes.vocab_size, sizes.max_len)
        if config.tie_embeddings and not sizes.target_vocab_size:
            self.embedding.tokens = self.encoder.embedding.tokens
        self.begin = nn.Linear(config.d_model, config.n_layers * cell_of(config).parts * config.d_model)
        self.blocks = Forwards(config)
        self.cross = Attention(plain, Relation(plain, 0, causal=False))
        self.mix = nn.Linear(config.d_model, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.head = vocabulary_head(config, self.embedding)
        initialise(self, depth=0)

    def forward(
        self, source: Tensor, target: Tensor, source_keep: Keep = None, target_keep: Keep = None
    ) -> Tensor:  # (B, S), (B, T) -> (B, T, V)
        read = self.encoder(source, source_keep)
        return self.head(self.decoded(target, read, source_keep, target_keep=target_keep))

    def decoded(
        self,
        target: Tensor,
        states: Tensor,
        source_keep: Keep = None,
        carry: Carry | None = None,
        target_keep: Keep = None,
    ) -> Tensor:  # (B, T), (B, S, D) -> (B, T, D)
        """What the head reads, from the begin token on; a `carry` remembers where it stopped, and the source."""
        rows, source, carry = _laid(target_keep), _laid(source_keep), carry or Carry()
        x = rows.apart(self.embedding(target, rows.positions(0, target.shape[1], target.device)))
        x, carry.state = self.blocks(x, self.first_state(states, source))
        return self._looked(rows.together(x), states, source, rows, carry)

    def first_state(self, states: Tensor, source: Padded | Packed) -> Tensor:  # (B, S, D) -> (L, P, B, D)
        """What the decoder begins with: made of what the encoder knew at the ends of the source."""
        n, parts, width = self.blocks.shape
        begun = torch.tanh(self.begin(self.encoder.ends(source, states)))  # (B, L · P · D)
        return begun.view(len(begun), n, parts, width).permute(1, 2, 0, 3).contiguous()

    def _looked(
        self, x: Tensor, states: Tensor, source: Padded | Packed, rows: Padded | Packed, carry: Carry
    ) -> Tensor:  # (B, T, D) -> (B, T, D)
        """tanh(W c + U x): c is what attention reads of the source, asked by x."""
        read = self.cross(x, states, source.read_by(rows), x, carry.source)
        return self.dropout(torch.tanh(read + self.mix(x)))

    def step(self, tokens: Tensor, carry: Carry, source_keep: Tensor | None) -> Tensor:  # (B, size) -> (B, size, V)
        """One more token for each hypothesis; those of a row look at its source together."""
        x = said_next(self.blocks, self.embedding(tokens, tokens), carry)
        nobody = x.new_empty(0)  # the carry has all that is read of the source
        return self.head(self._looked(x, nobody, Padded(source_keep), Padded(None), carry))

    def attention_stacks(self) -> dict[str, list[Attention]]:
        return {"cross": [self.cross]}
