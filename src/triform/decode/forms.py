"""The two forms that write, as decoding sees them: read what is given, then take one token at a time.

A decoder goes on with a prompt; an encoder-decoder reads a source and begins with one token. Whoever decodes need
not know which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.cache import Cache, Rings
from triform.nn.rows import Hypotheses, pad

Tokens = Sequence[int]


@dataclass
class Read:
    """Rows that have been read: what every layer keeps of them, and scores (N, V) for what comes next."""

    cache: Cache
    keep: Tensor | None  # (N, P): which columns are real; rows end at the same one
    source_keep: Tensor | None  # (N, S)
    lengths: list[int]
    scores: Tensor


class Rereads(Protocol):
    """The least that writing needs of a model."""

    max_len: int  # tokens that the model can read

    def begin(self, row: Tokens) -> list[int]:
        """The text, as far as it is written before the first step."""

    def read_again(self, rows: Sequence[Tokens], texts: Sequence[Tokens]) -> Tensor:
        """Scores (N, V) after texts that are read from the start, without a cache."""


class Form(Rereads, Protocol):
    """What decoding with a cache needs of a model."""

    refills: bool  # whether a text may fill `max_len`, and goes on from its newer half

    @property
    def model(self) -> nn.Module: ...

    def read(self, rows: Sequence[Tokens]) -> Read:
        """Read what is given."""

    def next(
        self, tokens: Tensor, rows: Hypotheses | None, cache: Cache | Rings, source_keep: Tensor | None
    ) -> Tensor:
        """One more token for each hypothesis, (B, T) -> scores (B, T, V); rows None: nothing is padded."""


def on_device_of(model: nn.Module, padded: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    device = next(model.parameters()).device
    tokens, keep = padded
    return tokens.to(device), None if keep is None else keep.to(device)


class DecoderForm:
    """Continues prompts. Rows are padded on the left, so that all of them end at the same place."""

    refills = True

    def __init__(self, model: Decoder, max_len: int) -> None:
        self.model, self.max_len = model, max_len

    def begin(self, row: Tokens) -> list[int]:
        return list(row[-self.max_len :])

    def read(self, rows: Sequence[Tokens]) -> Read:
        cache = Cache(len(self.model.blocks))
        texts = [self.begin(row) for row in rows]
        tokens, keep = on_device_of(self.model, pad(texts, left=True))  # (N, P)
        return Read(cache, keep, None, [len(text) for text in texts], self._after(tokens, keep, cache))

    def _after(self, tokens: Tensor, keep: Tensor | None, cache: Cache | None) -> Tensor:
        positions = None if keep is None else (keep.cumsum(dim=1) - 1).clamp(min=0)
        states = self.model.states(tokens, keep, positions, cache)
        return self.model.head(states[:, -1]).float()

    def next(
        self, tokens: Tensor, rows: Hypotheses | None, cache: Cache | Rings, source_keep: Tensor | None
    ) -> Tensor:
        return self.model.head(self.model.states(tokens, rows, None, cache)).float()

    def read_again(self, rows: Sequence[Tokens], texts: Sequence[Tokens]) -> Tensor:
        return self._after(*on_device_of(self.model, pad(texts, left=True)), None)


class Seq2SeqForm:
    """Writes a target for each source, from the begin token on. Limits keep it within the model's length."""

    refills = False

    def __init__(self, model: Seq2Seq, max_len: int, bos: int) -> None:
        self.model, self.max_len, self.bos = model, max_len, bos

    def begin(self, row: Tokens) -> list[int]:
        return [self.bos]

    def read(self, rows: Sequence[Tokens]) -> Read:
        cache = Cache(len(self.model.blocks))
        source, keep = on_device_of(self.model, pad(rows))  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        scores = self.model.decode(target, self.model.encoder(source, keep), keep, cache)[:, -1].float()
        return Read(cache, None, keep, [1] * len(rows), scores)

    def next(
        self, tokens: Tensor, rows: Hypotheses | None, cache: Cache | Rings, source_keep: Tensor | None
    ) -> Tensor:
        states = self.model.embedding.tokens.weight.new_empty(0)  # the cache has all that is read of them
        return self.model.decode(tokens, states, source_keep, cache, rows).float()

    def read_again(self, rows: Sequence[Tokens], texts: Sequence[Tokens]) -> Tensor:
        source, keep = on_device_of(self.model, pad(rows))
        target = on_device_of(self.model, pad(texts))[0]
        return self.model.decode(target, self.model.encoder(source, keep), keep)[:, -1].float()
