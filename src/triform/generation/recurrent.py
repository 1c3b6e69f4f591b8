"""How decoding runs a recurrent model: its state after the prompt replaces the KV cache of a Transformer.

The adapters and the stepper have the same methods as those in `adapters.py`. They are simpler, because a state has
the same size however long its text is: no context is ever full, rows leave and join by indexing and concatenation,
and a hypothesis of a beam search that continues another copies its state.

Shapes: B rows, K hypotheses of a row (1 without beam search), P prompt tokens, S source tokens, V tokens.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triform.generation.adapters import GenerationAdapter, TokenIds
from triform.generation.kv_cache import CrossKVStore
from triform.models.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from triform.nn.layouts import PaddedLayout
from triform.nn.recurrent import RecurrentState


@dataclass
class RecurrentPrefill:
    """The result of reading N rows: the state of each, and the logits (N, V) of the next token."""

    hidden: Tensor  # (L, P, N, D): the states of the layers
    source: CrossKVStore  # keys and values of the sources of an encoder-decoder
    source_keep: Tensor | None  # (N, S): False marks padding of a source; None: there is none
    logits: Tensor


class RecurrentAdapter(GenerationAdapter):
    """A recurrent model. It reads prompts of any length."""

    max_len = sys.maxsize
    sliding_context = False
    model: RecurrentDecoder | RecurrentSeq2Seq

    @abstractmethod
    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        """Read these rows in one pass and keep their states."""

    @abstractmethod
    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        """Feed one token (B, K) to each hypothesis, advance the state and return logits (B, K, V).

        The state has a row for each hypothesis, those of a row of the batch side by side: (B · K).
        """

    def build_stepper(self, beam_size: int = 1) -> RecurrentStepper:
        return RecurrentStepper(self, beam_size)


class RecurrentDecoderAdapter(RecurrentAdapter):
    """Continues prompts."""

    def __init__(self, model: RecurrentDecoder) -> None:
        self.model: RecurrentDecoder = model

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return list(row)

    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        state = RecurrentState()
        tokens, keep = self.pad(rows)  # (N, P)
        lengths = [len(row) for row in rows]
        hidden_states = self.model.hidden_states(tokens, keep, state, None if keep is None else lengths)
        last_states = hidden_states[range(len(rows)), [length - 1 for length in lengths]]  # (N, D)
        assert state.hidden is not None
        return RecurrentPrefill(state.hidden, CrossKVStore(), None, self.model.lm_head(last_states).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        logits = self.model(tokens.flatten()[:, None], None, state)  # (B · K, 1, V)
        return logits.view(*tokens.shape, -1).float()


class RecurrentSeq2SeqAdapter(RecurrentAdapter):
    """Generates a target for each source, starting with the begin token `bos`."""

    def __init__(self, model: RecurrentSeq2Seq, bos: int) -> None:
        self.model: RecurrentSeq2Seq = model
        self.bos = bos

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return [self.bos]

    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        store = CrossKVStore()
        state = RecurrentState(source_store=store)
        source, keep = self.pad(rows)  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        decoder_states = self.model.decoder_states(target, self.model.encoder(source, keep), keep, state)
        assert state.hidden is not None
        return RecurrentPrefill(state.hidden, store, keep, self.model.lm_head(decoder_states[:, -1]).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        x = self.model.embedding(tokens, tokens)  # (B, K, D); recurrent models have no position embeddings
        y, state.hidden = self.model.blocks(x.flatten(0, 1)[:, None], state.hidden)  # (B · K, 1, D)
        no_states = x.new_empty(0)  # the store has the keys and values of the source
        mask = PaddedLayout(source_keep).mask  # the hypotheses of a row share its source
        states = self.model.attend_source(y.view(x.shape), no_states, mask, state.source_store)
        return self.model.lm_head(states).float()


class RecurrentStepper:
    """Steps a batch of rows over their states; the hypotheses of a row are neighbours in them, (B · K)."""

    hidden: Tensor  # (L, P, B · K, D)
    source: CrossKVStore
    source_keep: Tensor | None

    def __init__(self, adapter: RecurrentAdapter, beam_size: int = 1) -> None:
        self.adapter, self.beam_size, self.n_rows = adapter, beam_size, 0

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        prefilled = self.adapter.prefill(rows)
        hidden = prefilled.hidden.repeat_interleave(self.beam_size, dim=2)
        if self.n_rows:
            self.hidden = torch.cat([self.hidden, hidden], dim=2)
            keeps = self.source_keep, prefilled.source_keep
            self.source_keep = self.source.append_rows(prefilled.source, *keeps)
        else:
            self.hidden, self.source, self.source_keep = hidden, prefilled.source, prefilled.source_keep
        self.n_rows += len(rows)
        return prefilled.logits

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        if parents is not None:
            offsets = self.beam_size * torch.arange(self.n_rows, device=parents.device)[:, None]
            self.hidden = self.hidden.index_select(2, (offsets + parents).flatten())
        state = RecurrentState(self.hidden, self.source)
        logits = self.adapter.decode_step(tokens, state, self.source_keep)
        assert state.hidden is not None
        self.hidden = state.hidden
        return logits

    def select(self, rows: Tensor) -> None:
        hypotheses = torch.arange(self.beam_size, device=rows.device)
        self.hidden = self.hidden.index_select(2, (self.beam_size * rows[:, None] + hypotheses).flatten())
        self.source.select(rows)
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]
        self.n_rows = len(rows)

    def restart(self, contexts: Sequence[Sequence[TokenIds]]) -> Tensor:
        raise AssertionError("the context of a recurrent model is never full")
