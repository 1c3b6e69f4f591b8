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

from triform.decode.forms import DecoderForm, Form, Seq2SeqForm, Tokens, on_device_of
from triform.decode.stepper import Cached, Stepper
from triform.models.kinds import AnyDecoder, AnySeq2Seq
from triform.models.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from triform.nn.recurrent import Carry
from triform.nn.rows import pad


@dataclass
class Begun:
    """Rows that have been read: what is carried of each, and scores (N, V) for what comes next."""

    carry: Carry
    source_keep: Tensor | None  # (N, S)
    scores: Tensor


class CarryingForm(Protocol):
    """What decoding needs of a recurrent model."""

    def read_all(self, rows: Sequence[Tokens]) -> Begun:
        """Read what is given."""

    def follow(self, tokens: Tensor, carry: Carry, source_keep: Tensor | None) -> Tensor:
        """One more token for each hypothesis, (B, size) -> scores (B, size, V)."""


class CarriedDecoderForm:
    """Continues prompts, read whole however long they are."""

    max_len = sys.maxsize  # a state is never full

    def __init__(self, model: RecurrentDecoder) -> None:
        self.model = model

    def begin(self, row: Tokens) -> list[int]:
        return list(row)

    def read_all(self, rows: Sequence[Tokens]) -> Begun:
        carry = Carry()
        tokens, keep = on_device_of(self.model, pad(rows))  # (N, P)
        lengths = [len(row) for row in rows]
        states = self.model.states(tokens, keep, carry, None if keep is None else lengths)
        ends = states[range(len(rows)), [length - 1 for length in lengths]]
        return Begun(carry, None, self.model.head(ends).float())

    def follow(self, tokens: Tensor, carry: Carry, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, carry).float()

    def read_again(self, rows: Sequence[Tokens], texts: Sequence[Tokens]) -> Tensor:
        return self.read_all(texts).scores


class CarriedSeq2SeqForm:
    """Writes a target for each source, from the begin token on."""

    max_len = sys.maxsize

    def __init__(self, model: RecurrentSeq2Seq, bos: int) -> None:
        self.model, self.bos = model, bos

    def begin(self, row: Tokens) -> list[int]:
        return [self.bos]

    def read_all(self, rows: Sequence[Tokens]) -> Begun:
        carry = Carry()
        source, keep = on_device_of(self.model, pad(rows))  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        states = self.model.decoded(target, self.model.encoder(source, keep), keep, carry)
        return Begun(carry, keep, self.model.head(states[:, -1]).float())

    def follow(self, tokens: Tensor, carry: Carry, source_keep: Tensor | None) -> Tensor:
        return self.model.step(tokens, carry, source_keep).float()

    def read_again(self, rows: Sequence[Tokens], texts: Sequence[Tokens]) -> Tensor:
        source, keep = on_device_of(self.model, pad(rows))
        target = on_device_of(self.model, pad(texts))[0]
        return self.model(source, target, keep)[:, -1].float()


class Carried:
    """A stepper over states; the hypotheses of a row lie side by side in them, (B · size)."""

    carry: Carry
    source_keep: Tensor | None

    def __init__(self, form: CarryingForm, rows: Sequence[Tokens]) -> None:
        self.form, self.rows, self.size = form, rows, 1

    def start(self) -> Tensor:
        begun = self.form.read_all(self.rows)
        self.carry, self.source_keep = begun.carry, begun.source_keep
        return begun.scores

    def fork(self, size: int) -> None:
        self.size = size
        self.carry.repeat(size)

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        grid = tokens.view(-1, self.size)
        if parents is not None:
            firsts = self.size * torch.arange(len(grid), device=parents.device)[:, None]
            self.carry.reorder((firsts + parents).flatten())
        return self.form.follow(grid, self.carry, self.source_keep).view(*tokens.shape, -1)

    def select(self, rows: Tensor) -> None:
        own = torch.arange(self.size, device=rows.device)
        self.carry.reorder((self.size * rows[:, None] + own).flatten())
        self.carry.source.select(rows)
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]

    def join(self, rows: Sequence[Tokens]) -> Tensor:
        begun = self.form.read_all(rows)
        begun.carry.repeat(self.size)
        self.source_keep = self.carry.join(begun.carry, self.source_keep, begun.source_keep)
        return begun.scores


AnyForm = Form | CarriedDecoderForm | CarriedSeq2SeqForm


def decoder_form(model: AnyDecoder, max_len: int) -> AnyForm:
    return CarriedDecoderForm(model) if isinstance(model, RecurrentDecoder) else DecoderForm(model, max_len)


def seq2seq_form(model: AnySeq2Seq, max_len: int, bos: int) -> AnyForm:
    return (
        CarriedSeq2SeqForm(model, bos) if isinstance(model, RecurrentSeq2Seq) else Seq2SeqForm(model, max_len, bos)
    )


def stepper_of(form: AnyForm, rows: Sequence[Tokens]) -> Stepper:
    """What takes one token after the other, without reading anything twice."""
    return Carried(form, rows) if isinstance(form, CarriedDecoderForm | CarriedSeq2SeqForm) else Cached(form, rows)
