"""How decoding runs a recurrent model: its state after the prompt replaces the KV cache of a Transformer.

The adapters and the stepper have the same methods as those in `adapters.py`. They are simpler, because a state has
the same size however long its text is: no context is ever full, rows leave and join by indexing and concatenation,
and a hypothesis of a beam search that continues another copies its state.

Shapes: B rows, K hypotheses of a row (1 without beam search), P prompt tokens, S source tokens, V tokens.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triform.models.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from triform.nn.kernels.batching import append_source
from triform.nn.layouts import pad
from triform.nn.recurrent import RecurrentState


@dataclass
class RecurrentPrefill:
    """The result of reading N rows: the state of each, and the logits (N, V) of the next token."""

    state: RecurrentState
    source_keep: Tensor | None  # (N, S): False marks padding of a source; None: there is none
    logits: Tensor


class RecurrentAdapter(ABC):
    """A recurrent model. It reads prompts of any length."""

    max_len = sys.maxsize
    sliding_context = False
    model: RecurrentDecoder | RecurrentSeq2Seq

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @abstractmethod
    def initial_tokens(self, row: Sequence[int]) -> list[int]:
        """Return the tokens that a generated text starts with: the prompt, or the begin token of a target."""

    @abstractmethod
    def prefill(self, rows: Sequence[Sequence[int]]) -> RecurrentPrefill:
        """Read these rows in one pass and keep their states."""

    @abstractmethod
    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        """Feed one token (B, K) to each hypothesis, advance the state and return logits (B, K, V)."""

    def build_stepper(self, beam_size: int = 1) -> RecurrentStepper:
        return RecurrentStepper(self, beam_size)

    def _pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        tokens, keep = pad(rows)
        return tokens.to(self.device), None if keep is None else keep.to(self.device)


class RecurrentDecoderAdapter(RecurrentAdapter):
    """Continues prompts."""

    def __init__(self, model: RecurrentDecoder) -> None:
        self.model: RecurrentDecoder = model

    def initial_tokens(self, row: Sequence[int]) -> list[int]:
        return list(row)

    def prefill(self, rows: Sequence[Sequence[int]]) -> RecurrentPrefill:
        state = RecurrentState()
        tokens, keep = self._pad(rows)  # (N, P)
        lengths = [len(row) for row in rows]
        hidden_states = self.model.hidden_states(tokens, keep, state, None if keep is None else lengths)
        last_states = hidden_states[range(len(rows)), [length - 1 for length in lengths]]  # (N, D)
        return RecurrentPrefill(state, None, self.model.lm_head(last_states).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, state).float()


class RecurrentSeq2SeqAdapter(RecurrentAdapter):
    """Generates a target for each source, starting with the begin token `bos`."""

    def __init__(self, model: RecurrentSeq2Seq, bos: int) -> None:
        self.model: RecurrentSeq2Seq = model
        self.bos = bos

    def initial_tokens(self, row: Sequence[int]) -> list[int]:
        return [self.bos]

    def prefill(self, rows: Sequence[Sequence[int]]) -> RecurrentPrefill:
        state = RecurrentState()
        source, keep = self._pad(rows)  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        decoder_states = self.model.decoder_states(target, self.model.encoder(source, keep), keep, state)
        return RecurrentPrefill(state, keep, self.model.lm_head(decoder_states[:, -1]).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, state, source_keep).float()


class RecurrentStepper:
    """Steps a batch of rows over their states; the hypotheses of a row are neighbours in them, (B · K)."""

    state: RecurrentState
    source_keep: Tensor | None

    def __init__(self, adapter: RecurrentAdapter, beam_size: int = 1) -> None:
        self.adapter, self.beam_size, self.n_rows = adapter, beam_size, 0

    def append_rows(self, rows: Sequence[Sequence[int]]) -> Tensor:
        prefilled = self.adapter.prefill(rows)
        prefilled.state.repeat(self.beam_size)
        if self.n_rows:
            keeps = self.source_keep, prefilled.source_keep
            self.source_keep = append_state_rows(self.state, prefilled.state, *keeps)
        else:
            self.state, self.source_keep = prefilled.state, prefilled.source_keep
        self.n_rows += len(rows)
        return prefilled.logits

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        if parents is not None:
            offsets = self.beam_size * torch.arange(self.n_rows, device=parents.device)[:, None]
            self.state.reorder((offsets + parents).flatten())
        return self.adapter.decode_step(tokens, self.state, self.source_keep)

    def select(self, rows: Tensor) -> None:
        hypotheses = torch.arange(self.beam_size, device=rows.device)
        self.state.reorder((self.beam_size * rows[:, None] + hypotheses).flatten())
        self.state.source.select(rows)
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]
        self.n_rows = len(rows)

    def restart(self, contexts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        raise AssertionError("the context of a recurrent model is never full")


def append_state_rows(
    state: RecurrentState, other: RecurrentState, keep: Tensor | None, other_keep: Tensor | None
) -> Tensor | None:
    """Append the rows of another state; returns which source tokens are real, (B + N, S)."""
    assert state.hidden is not None
    assert other.hidden is not None
    state.hidden = torch.cat([state.hidden, other.hidden], dim=2)
    return append_source(state.source, other.source, keep, other_keep)
