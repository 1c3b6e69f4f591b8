"""What decoding needs of a model: scores for the next token, one step at a time, rows that can be chosen.

With `cached=False` every step reads everything again: slower, the same answer, and what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.cache import Cache
from triform.nn.rows import pad


class Stepper(Protocol):
    def start(self) -> Tensor:
        """Scores (B, V) for the first new token."""

    def step(self, tokens: Tensor) -> Tensor:
        """Take one token a row (B); scores (B, V) for the next."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be repeated."""


def _on(device: torch.device, padded: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    tokens, keep = padded
    return tokens.to(device), None if keep is None else keep.to(device)


class DecoderStepper:
    """Continues prompts. Rows are padded on the left, so that all of them end at the same place.

    A row that fills the model's context goes on from its newer half.
    """

    def __init__(
        self, model: Decoder, prompts: Sequence[Sequence[int]], *, max_len: int, cached: bool = True
    ) -> None:
        self.model, self.max_len, self.cached = model, max_len, cached
        self.device = next(model.parameters()).device
        self._begin([list(prompt[-max_len:]) for prompt in prompts])

    def _begin(self, rows: list[list[int]]) -> None:
        self.tokens, self.keep = _on(self.device, pad(rows, left=True))  # (B, T)
        self.longest = max(map(len, rows))
        self.cache = Cache(len(self.model.blocks)) if self.cached else None

    def start(self) -> Tensor:
        return self._scores(self.tokens)

    def step(self, tokens: Tensor) -> Tensor:
        if self.longest == self.max_len:
            rows = [self._real(row) for row in range(len(self.tokens))]
            self._begin([row[-(self.max_len // 2) :] if len(row) == self.max_len else row for row in rows])
        self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        self.longest += 1
        if self.keep is not None:
            self.keep = torch.cat([self.keep, self.keep.new_ones(len(tokens), 1)], dim=1)
        return self._scores(self.tokens)

    def _real(self, row: int) -> list[int]:
        tokens = self.tokens[row] if self.keep is None else self.tokens[row][self.keep[row]]
        return tokens.tolist()

    def _scores(self, tokens: Tensor) -> Tensor:
        """Scores after the last token; with a cache only what it has not seen is read."""
        fresh = tokens[:, self.cache.length :] if self.cache else tokens
        positions = None
        if self.keep is not None:
            positions = (self.keep.cumsum(dim=1) - 1).clamp(min=0)[:, -fresh.shape[1] :]
        return self.model(fresh, self.keep, positions, self.cache)[:, -1].float()

    def select(self, rows: Tensor) -> None:
        self.tokens = self.tokens[rows]
        self.keep = None if self.keep is None else self.keep[rows]
        if self.cache:
            self.cache.select(rows)


class Seq2SeqStepper:
    """Writes a target for each source, from the begin token on."""

    def __init__(self, model: Seq2Seq, sources: Sequence[Sequence[int]], *, bos: int, cached: bool = True) -> None:
        self.model = model
        device = next(model.parameters()).device
        source, self.keep = _on(device, pad(sources))  # (B, S)
        self.states = model.encoder(source, self.keep)  # (B, S, D)
        self.target = torch.full((len(sources), 1), bos, device=device)  # (B, T)
        self.cache = Cache(len(model.blocks)) if cached else None

    def start(self) -> Tensor:
        return self._scores()

    def step(self, tokens: Tensor) -> Tensor:
        self.target = torch.cat([self.target, tokens[:, None]], dim=1)
        return self._scores()

    def _scores(self) -> Tensor:
        fresh = self.target[:, self.cache.length :] if self.cache else self.target
        return self.model.decode(fresh, self.states, self.keep, self.cache)[:, -1].float()

    def select(self, rows: Tensor) -> None:
        self.target, self.states = self.target[rows], self.states[rows]
        self.keep = None if self.keep is None else self.keep[rows]
        if self.cache:
            self.cache.select(rows)
