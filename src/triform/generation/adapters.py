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
from triform.nn.kv_cache import KVCache, StaticKVCache
from triform.nn.layouts import BeamLayout, pad

TokenIds = Sequence[int]


@dataclass
class Prefill:
    """Rows that have been read: what every layer keeps of them, and scores (N, V) for what comes next."""

    cache: KVCache
    keep: Tensor | None  # (N, P): which columns are real; rows end at the same one
    source_keep: Tensor | None  # (N, S)
    lengths: list[int]
    logits: Tensor


class UncachedAdapter(Protocol):
    """The least that writing needs of a model."""

    max_len: int  # tokens that the model can read

    def initial_tokens(self, row: TokenIds) -> list[int]:
        """The text, as far as it is written before the first step."""

    def uncached_logits(self, rows: Sequence[TokenIds], sequences: Sequence[TokenIds]) -> Tensor:
        """Scores (N, V) after texts that are read from the start, without a cache."""


class GenerationAdapter(UncachedAdapter, Protocol):
    """What decoding with a cache needs of a model."""

    sliding_context: bool  # whether a text may fill `max_len`, and goes on from its newer half

    @property
    def model(self) -> nn.Module: ...

    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        """Read what is given."""

    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        """One more token for each hypothesis, (B, T) -> scores (B, T, V); rows None: nothing is padded."""


def to_model_device(model: nn.Module, padded: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    device = next(model.parameters()).device
    tokens, keep = padded
    return tokens.to(device), None if keep is None else keep.to(device)


class DecoderAdapter:
    """Continues prompts. Rows are padded on the left, so that all of them end at the same place."""

    sliding_context = True

    def __init__(self, model: Decoder, max_len: int) -> None:
        self.model, self.max_len = model, max_len

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return list(row[-self.max_len :])

    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        cache = KVCache(len(self.model.blocks))
        sequences = [self.initial_tokens(row) for row in rows]
        tokens, keep = to_model_device(self.model, pad(sequences, left=True))  # (N, P)
        return Prefill(
            cache, keep, None, [len(sequence) for sequence in sequences], self._last_logits(tokens, keep, cache)
        )

    def _last_logits(self, tokens: Tensor, keep: Tensor | None, cache: KVCache | None) -> Tensor:
        positions = None if keep is None else (keep.cumsum(dim=1) - 1).clamp(min=0)
        hidden_states = self.model.hidden_states(tokens, keep, positions, cache)
        return self.model.lm_head(hidden_states[:, -1]).float()

    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        return self.model.lm_head(self.model.hidden_states(tokens, layout, None, cache)).float()

    def uncached_logits(self, rows: Sequence[TokenIds], sequences: Sequence[TokenIds]) -> Tensor:
        return self._last_logits(*to_model_device(self.model, pad(sequences, left=True)), None)


class Seq2SeqAdapter:
    """Writes a target for each source, from the begin token on. Limits keep it within the model's length."""

    sliding_context = False

    def __init__(self, model: Seq2Seq, max_len: int, bos: int) -> None:
        self.model, self.max_len, self.bos = model, max_len, bos

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return [self.bos]

    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        cache = KVCache(len(self.model.blocks))
        source, keep = to_model_device(self.model, pad(rows))  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        logits = self.model.decode(target, self.model.encoder(source, keep), keep, cache)[:, -1].float()
        return Prefill(cache, None, keep, [1] * len(rows), logits)

    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        encoder_states = self.model.embedding.token_embedding.weight.new_empty(
            0
        )  # the cache has all that is read of them
        return self.model.decode(tokens, encoder_states, source_keep, cache, layout).float()

    def uncached_logits(self, rows: Sequence[TokenIds], sequences: Sequence[TokenIds]) -> Tensor:
        source, keep = to_model_device(self.model, pad(rows))
        target = to_model_device(self.model, pad(sequences))[0]
        return self.model.decode(target, self.model.encoder(source, keep), keep)[:, -1].float()
