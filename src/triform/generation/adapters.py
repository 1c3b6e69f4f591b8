"""How decoding runs a Transformer: read the prompt once (prefill), then one token at a time (decode step).

An adapter hides which form of model is decoded. `DecoderAdapter` continues prompts, `Seq2SeqAdapter` generates a
target for each source. An adapter has no state: `prefill` returns a `KVCache` and `decode_step` extends
it. `CachedStepper` holds that cache for a batch of rows that join, leave and split into the hypotheses of a beam
search. Recurrent models have the same two parts in `recurrent.py`.

Shapes: B rows, K hypotheses of a row (1 without beam search), P prompt tokens, S keys, V tokens in the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from triform.generation.kv_cache import KVCache, StaticKVCache
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.kernels.beams import BeamLayout
from triform.nn.layouts import PaddedLayout, pad

TokenIds = Sequence[int]


class Stepper(Protocol):
    """What a model remembers of a batch of rows (KV cache or recurrent state), and the steps that update it.

    Rows keep their order; new rows are appended after the others.
    """

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        """Prefill these rows and add them to the batch. Return the logits (N, V) of their first new token."""

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Feed one token (B, K) to each hypothesis and return the logits (B, K, V) of the next token.

        `parents` (B, K) says which hypothesis of the previous step each one continues; None: its own.
        """

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order, each with all its hypotheses. A row may be repeated."""

    def restart(self, contexts: Sequence[Sequence[TokenIds]]) -> Tensor:
        """Drop the batch and prefill these contexts (B, K) instead. Return their logits (B, K, V)."""


class GenerationAdapter(ABC):
    """What the scheduler needs to know about any model, Transformer or recurrent."""

    max_len: int  # tokens the model can read at once
    sliding_context: bool  # whether a text may outgrow `max_len`, dropping the older half of its context
    model: nn.Module

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @abstractmethod
    def initial_tokens(self, row: TokenIds) -> list[int]:
        """Return the tokens that a generated text starts with: the prompt, or the begin token of a target."""

    @abstractmethod
    def build_stepper(self, beam_size: int = 1) -> Stepper:
        """Return an empty batch in which every row has `beam_size` hypotheses."""

    def pad(self, rows: Sequence[TokenIds], *, left: bool = False) -> tuple[Tensor, Tensor | None]:
        """Pad rows. Return the tokens (N, P) and `keep`, which is None without padding, on the model's device."""
        tokens, keep = pad(rows, left=left)
        return tokens.to(self.device), None if keep is None else keep.to(self.device)


@dataclass
class Prefill:
    """The result of reading N rows: their keys and values, and the logits (N, V) of the next token."""

    cache: KVCache
    keep: Tensor | None  # (N, P): False marks padding on the left; None: there is none
    source_keep: Tensor | None  # (N, S): the same for the sources of an encoder-decoder, padded on the right
    lengths: list[int]  # tokens of each row, without padding
    logits: Tensor


class TransformerAdapter(GenerationAdapter):
    """A Transformer that keeps keys and values. Its decode step can be captured as a CUDA graph."""

    model: Decoder | Seq2Seq

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len

    @abstractmethod
    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        """Read these rows in one pass and keep their keys and values."""

    @abstractmethod
    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        """Feed one token (B, K) to each hypothesis, extend the cache and return logits (B, K, V).

        `layout` says which keys each hypothesis may read; None: all of them, which needs rows without padding.
        """

    def build_stepper(self, beam_size: int = 1) -> CachedStepper:
        return CachedStepper(self, beam_size)


class LeftPaddedLayout(PaddedLayout):
    """One sequence in each row, padded on the left; `keep` (B, S) includes the tokens in the cache."""

    def positions(self, start: int, t: int, device: torch.device) -> Tensor:  # -> (B, T)
        """Return positions that are 0 at the first real token of each row."""
        assert self.keep is not None
        return (self.keep.cumsum(dim=1) - 1).clamp(min=0)[:, start : start + t]


class DecoderAdapter(TransformerAdapter):
    """Continues prompts. Prompts are padded on the left, so that all of them end in the same column."""

    sliding_context = True

    def __init__(self, model: Decoder, max_len: int) -> None:
        super().__init__(max_len)
        self.model: Decoder = model

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return list(row[-self.max_len :])

    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        prompts = [self.initial_tokens(row) for row in rows]
        tokens, keep = self.pad(prompts, left=True)  # (N, P)
        cache, layout = KVCache(len(self.model.blocks)), None if keep is None else LeftPaddedLayout(keep)
        hidden_states = self.model.hidden_states(tokens, layout, cache)  # (N, P, D)
        logits = self.model.lm_head(hidden_states[:, -1]).float()
        return Prefill(cache, keep, None, [len(prompt) for prompt in prompts], logits)

    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        return self.model.lm_head(self.model.hidden_states(tokens, layout, cache)).float()


class Seq2SeqAdapter(TransformerAdapter):
    """Generates a target for each source, starting with the begin token `bos`.

    The prefill runs the encoder; the cache then holds its keys and values. A target must not outgrow `max_len`.
    """

    sliding_context = False

    def __init__(self, model: Seq2Seq, max_len: int, bos: int) -> None:
        super().__init__(max_len)
        self.model: Seq2Seq = model
        self.bos = bos

    def initial_tokens(self, row: TokenIds) -> list[int]:
        return [self.bos]

    def prefill(self, rows: Sequence[TokenIds]) -> Prefill:
        source, keep = self.pad(rows)  # (N, S)
        target = torch.full((len(rows), 1), self.bos, device=source.device)
        cache = KVCache(len(self.model.blocks))
        states = self.model.decoder_states(target, self.model.encoder(source, keep), keep, cache)  # (N, 1, D)
        return Prefill(cache, None, keep, [1] * len(rows), self.model.lm_head(states[:, -1]).float())

    def decode_step(
        self, tokens: Tensor, layout: BeamLayout | None, cache: KVCache | StaticKVCache, source_keep: Tensor | None
    ) -> Tensor:
        no_states = self.model.embedding.token_embedding.weight.new_empty(0)  # the cache has their keys and values
        states = self.model.decoder_states(tokens, no_states, source_keep, cache, layout)  # (B, K, D)
        return self.model.lm_head(states).float()


class CachedStepper:
    """Steps a batch of rows over one KV cache.

    All rows share one clock: a step writes its keys into new columns at the end of the cache, K of them, one for
    each hypothesis. A row that joins later is written so that its prompt ends in the newest column. Hypotheses
    never copy keys: `keep` says which columns belong to the past of each one, and a hypothesis that continues
    another takes over that one's `keep`.
    """

    cache: KVCache
    source_keep: Tensor | None  # (B, S)
    keep: Tensor | None  # (B, K, S); None while every key belongs to every row, which needs K = 1
    key_times: Tensor  # (S): the step at which each column was written, increasing; only used with `keep`

    def __init__(self, adapter: TransformerAdapter, beam_size: int = 1) -> None:
        self.adapter, self.beam_size = adapter, beam_size
        self.lengths: list[int] = []  # tokens of each row that the model has read

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        prefilled = self.adapter.prefill(rows)
        if not self.lengths:
            self._start(prefilled)
            return prefilled.logits
        self._append_sources(prefilled)
        self._write_prefill(prefilled)
        self.lengths = self.lengths + prefilled.lengths
        return prefilled.logits

    def _append_sources(self, prefilled: Prefill) -> None:
        keep = None
        for (_, source_store), (_, new_store) in zip(self.cache.stores, prefilled.cache.stores, strict=True):
            keep = source_store.append_rows(new_store, self.source_keep, prefilled.source_keep)
        self.source_keep = keep

    def _start(self, prefilled: Prefill) -> None:
        """Start with the cache of the first rows."""
        self.cache, self.source_keep, self.lengths = prefilled.cache, prefilled.source_keep, prefilled.lengths
        self.key_times = torch.arange(self.cache.length, device=prefilled.logits.device)
        self.keep = None if prefilled.keep is None else prefilled.keep[:, None]
        if self.beam_size > 1:
            self.keep = self._ensure_keep()[:, :1].expand(-1, self.beam_size, -1)

    def _ensure_keep(self) -> Tensor:
        """Return `keep`, after replacing None by a tensor."""
        if self.keep is None:
            self.key_times = torch.arange(self.cache.length, device=self.key_times.device)
            self.keep = self.key_times.new_ones((len(self.lengths), 1, len(self.key_times)), dtype=torch.bool)
        return self.keep

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        layout = self._step_layout(parents)
        logits = self.adapter.decode_step(tokens, layout, self.cache, self.source_keep)  # (B, K, V)
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def _step_layout(self, parents: Tensor | None) -> BeamLayout | None:
        """Let each new token read the past of its parent, and itself."""
        if self.keep is None:
            return None
        if parents is not None:
            self.keep = self.keep.gather(1, parents[:, :, None].expand(self.keep.shape))
        identity = torch.eye(self.beam_size, dtype=torch.bool, device=self.keep.device)
        self.keep = torch.cat([self.keep, identity.expand(len(self.keep), -1, -1)], dim=2)
        self.key_times = torch.cat([self.key_times, (self.key_times[-1] + 1).expand(self.beam_size)])
        # A finished row may stay for a few steps more: its position must stay below max_len.
        position_rows = [[min(length, self.adapter.max_len - 1)] for length in self.lengths]
        positions = torch.tensor(position_rows, device=self.keep.device)
        return BeamLayout(self.keep, self.key_times[-1] - self.key_times, positions.expand(-1, self.beam_size))

    def select(self, rows: Tensor) -> None:
        indices = rows.tolist()
        if indices == list(range(len(self.lengths))):
            return
        self.cache.select(rows)
        self.lengths = [self.lengths[index] for index in indices]
        self.keep = None if self.keep is None else self.keep[rows]
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]

    def restart(self, contexts: Sequence[Sequence[TokenIds]]) -> Tensor:
        """Prefill every hypothesis separately, then lay those of a row side by side in the cache."""
        prefilled = self.adapter.prefill([context for hypotheses in contexts for context in hypotheses])
        self.lengths, beam_size = prefilled.lengths[:: self.beam_size], self.beam_size
        self.cache, self.source_keep = prefilled.cache, prefilled.source_keep
        width, device = self.cache.length, prefilled.logits.device
        keep = torch.ones(1, width, dtype=torch.bool, device=device) if prefilled.keep is None else prefilled.keep
        keep = keep.expand(len(prefilled.logits), -1).view(len(contexts), beam_size, width)
        for kv_store, _ in self.cache.stores:
            kv_store.interleave_beams(beam_size)
        identity = torch.eye(beam_size, dtype=torch.bool, device=device)
        self.keep = (keep[..., None] & identity[:, None]).flatten(2)  # (B, K, P · K)
        self.key_times = torch.arange(width, device=device).repeat_interleave(beam_size)
        return prefilled.logits.view(len(contexts), beam_size, -1)

    def _write_prefill(self, prefilled: Prefill) -> None:
        """Write the keys of new rows so that they end in the newest column; drop columns that no row needs."""
        keep, width = self._ensure_keep(), prefilled.cache.length
        n_before, n_added, device = len(keep), len(prefilled.lengths), keep.device
        used_columns = keep.any(dim=1).any(dim=0).nonzero()
        first_time = min(int(self.key_times[used_columns[0, 0]]), int(self.key_times[-1]) - width + 1)
        n_front = int(self.key_times[0]) - first_time  # columns to add in front, or below zero: to drop
        if n_front < 0:
            n_front = -int(torch.searchsorted(self.key_times, first_time))
        for kv_store, _ in self.cache.stores:
            kv_store.extend(extra_rows=n_added, front_padding=n_front)
        front_times = torch.arange(first_time, first_time + max(n_front, 0), device=device)
        self.key_times = torch.cat([front_times, self.key_times[max(-n_front, 0) :]])
        self.keep = keep.new_zeros(n_before + n_added, self.beam_size, len(self.key_times))
        self.keep[:n_before, :, max(n_front, 0) :] = keep[:, :, max(-n_front, 0) :]
        new_rows = torch.arange(n_before, n_before + n_added, device=device)
        times = torch.arange(width, device=device) + (self.key_times[-1] - width + 1)
        write_columns = torch.searchsorted(self.key_times, times)
        for (kv_store, _), (new_store, _) in zip(self.cache.stores, prefilled.cache.stores, strict=True):
            kv_store.write_rows(new_rows, write_columns, new_store.key_value())
        valid = prefilled.keep if prefilled.keep is not None else keep.new_ones(n_added, width)
        for hypothesis in range(self.beam_size):
            self.keep[new_rows[:, None], hypothesis, write_columns] = valid
