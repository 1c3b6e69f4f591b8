"""Decoding with recurrent models: what was read is a state a row, and a step takes it one token further.

A state has one size however long its text is. So nothing is ever full, no clock is shared, rows leave and join by
being selected and put beside one another, and a hypothesis that goes on from another takes its state.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triform.generation.adapters import DecoderAdapter, GenerationAdapter, Seq2SeqAdapter, TokenIds, to_model_device
from triform.generation.stepper import CachedStepper, Stepper
from triform.models.factory import AnyDecoder, AnySeq2Seq
from triform.models.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from triform.nn.layouts import pad
from triform.nn.recurrent import RecurrentState


@dataclass
class RecurrentPrefill:
    """Rows that have been read: what is carried of each, and scores (N, V) for what comes next."""

    state: RecurrentState
    source_keep: Tensor | None  # (N, S)
    logits: Tensor


class RecurrentAdapter(Protocol):
    """What decoding needs of a recurrent model."""

    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        """Read what is given."""

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        """One more token for each hypothesis, (B, size) -> scores (B, size, V)."""


class RecurrentDecoderAdapter:
    """Continues prompts, read whole however long they are."""

    max_len = sys.maxsize  # a state is never full

    def __init__(self, model: RecurrentDecoder) -> None:
        self.model = model

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return list(row)

    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        state = RecurrentState()
        tokens, keep = to_model_device(self.model, pad(rows))  # (N, P)
        lengths = [len(row) for row in rows]
        hidden_states = self.model.hidden_states(tokens, keep, state, None if keep is None else lengths)
        last_states = hidden_states[range(len(rows)), [length - 1 for length in lengths]]
        return RecurrentPrefill(state, None, self.model.lm_head(last_states).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, state).float()

    def uncached_logits(self, rows: Sequence[TokenIds], sequences: Sequence[TokenIds]) -> Tensor:
        return self.prefill(sequences).logits


class RecurrentSeq2SeqAdapter:
    """Writes a target for each source, from the begin token on."""

    max_len = sys.maxsize

    def __init__(self, model: RecurrentSeq2Seq, bos: int) -> None:
        self.model, self.bos = model, bos

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return [self.bos]

    def prefill(self, rows: Sequence[TokenIds]) -> RecurrentPrefill:
        state = RecurrentState()
        source, keep = to_model_device(self.model, pad(rows))  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        decoder_states = self.model.decoder_states(target, self.model.encoder(source, keep), keep, state)
        return RecurrentPrefill(state, keep, self.model.lm_head(decoder_states[:, -1]).float())

    def decode_step(self, tokens: Tensor, state: RecurrentState, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, state, source_keep).float()

    def uncached_logits(self, rows: Sequence[TokenIds], sequences: Sequence[TokenIds]) -> Tensor:
        source, keep = to_model_device(self.model, pad(rows))
        target = to_model_device(self.model, pad(sequences))[0]
        return self.model(source, target, keep)[:, -1].float()


class RecurrentStepper:
    """A stepper over states; the hypotheses of a row lie side by side in them, (B · size)."""

    state: RecurrentState
    source_keep: Tensor | None

    def __init__(self, adapter: RecurrentAdapter, rows: Sequence[TokenIds]) -> None:
        self.adapter, self.rows, self.beam_size = adapter, rows, 1

    def prefill(self) -> Tensor:
        prefilled = self.adapter.prefill(self.rows)
        self.state, self.source_keep = prefilled.state, prefilled.source_keep
        return prefilled.logits

    def expand_to_beams(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.state.repeat(beam_size)

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        token_grid = tokens.view(-1, self.beam_size)
        if parents is not None:
            offsets = self.beam_size * torch.arange(len(token_grid), device=parents.device)[:, None]
            self.state.reorder((offsets + parents).flatten())
        return self.adapter.decode_step(token_grid, self.state, self.source_keep).view(*tokens.shape, -1)

    def select(self, rows: Tensor) -> None:
        beam_indices = torch.arange(self.beam_size, device=rows.device)
        self.state.reorder((self.beam_size * rows[:, None] + beam_indices).flatten())
        self.state.source.select(rows)
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        prefilled = self.adapter.prefill(rows)
        prefilled.state.repeat(self.beam_size)
        self.source_keep = self.state.append_rows(prefilled.state, self.source_keep, prefilled.source_keep)
        return prefilled.logits


AnyAdapter = GenerationAdapter | RecurrentDecoderAdapter | RecurrentSeq2SeqAdapter


def build_decoder_adapter(model: AnyDecoder, max_len: int) -> AnyAdapter:
    return RecurrentDecoderAdapter(model) if isinstance(model, RecurrentDecoder) else DecoderAdapter(model, max_len)


def build_seq2seq_adapter(model: AnySeq2Seq, max_len: int, bos: int) -> AnyAdapter:
    return (
        RecurrentSeq2SeqAdapter(model, bos)
        if isinstance(model, RecurrentSeq2Seq)
        else Seq2SeqAdapter(model, max_len, bos)
    )


def build_stepper(adapter: AnyAdapter, rows: Sequence[TokenIds]) -> Stepper:
    """What takes one token after the other, without reading anything twice."""
    return (
        RecurrentStepper(adapter, rows)
        if isinstance(adapter, RecurrentDecoderAdapter | RecurrentSeq2SeqAdapter)
        else CachedStepper(adapter, rows)
    )
