"""One step at a time: scores for the next token, over rows that may leave, join and fork into hypotheses.

`Cached` keeps keys and values and reads as much as there is; `Rereading` reads everything again at every step:
slower, the same answer, and what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from triform.generation.adapters import GenerationAdapter, Prefill, TokenIds, UncachedAdapter
from triform.nn.kv_cache import KVCache
from triform.nn.layouts import BeamLayout


class BasicStepper(Protocol):
    """The least that a stepper does."""

    def prefill(self) -> Tensor:
        """Scores (B, V) for the first new token."""

    def step(self, tokens: Tensor) -> Tensor:
        """Take one token a row (B); scores (B, V) for the next."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be repeated."""


class Stepper(Protocol):
    """A stepper that can do all that searches ask of it."""

    def prefill(self) -> Tensor:
        """Scores (B, V) for the first new token."""

    def expand_to_beams(self, beam_size: int) -> None:
        """From here on every row has so many hypotheses, and so has every row that joins."""

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Take a token each, (B) or (B, size); scores for the next. Hypotheses go on from these `parents`."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order, each with all its hypotheses; a row may be repeated."""

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        """Rows that come after those that are there; scores (N, V) for their first new token."""


class UncachedStepper:
    """No cache: each step reads all texts from the start. A text that fills the context goes on from its half."""

    def __init__(self, adapter: UncachedAdapter, rows: Sequence[TokenIds]) -> None:
        self.adapter, self.rows = adapter, list(rows)
        self.sequences = [adapter.initial_tokens(row) for row in rows]

    def prefill(self) -> Tensor:
        return self.adapter.uncached_logits(self.rows, self.sequences)

    def step(self, tokens: Tensor) -> Tensor:
        pairs = zip(self.sequences, tokens.tolist(), strict=True)
        self.sequences = [append_or_slide(sequence, token, self.adapter.max_len) for sequence, token in pairs]
        return self.prefill()

    def select(self, rows: Tensor) -> None:
        indices = rows.tolist()
        self.rows, self.sequences = (
            [self.rows[index] for index in indices],
            [self.sequences[index] for index in indices],
        )


def append_or_slide(sequence: list[int], token: int, max_len: int) -> list[int]:
    """The text with one token more; one that the model can read no longer goes on from its newer half."""
    return [*(sequence[-(max_len // 2) :] if len(sequence) == max_len else sequence), token]


class CachedStepper:
    """Keys and values of what was read are kept. All rows share one clock: each writes its newest at the end.

    A row that joins is laid so that it ends there too, and the hypotheses of a row lie side by side: none is ever
    copied, `keep` says whose past a key belongs to.
    """

    cache: KVCache
    lengths: list[int]  # tokens of each row's text
    source_keep: Tensor | None  # (B, S)
    keep: Tensor | None  # (B, size, S): the keys of each hypothesis; None: all, and no row has more than one
    key_times: Tensor  # (S): when each key was written, where there is a `keep`

    def __init__(self, adapter: GenerationAdapter, rows: Sequence[TokenIds]) -> None:
        self.adapter, self.rows, self.beam_size = adapter, rows, 1
        self.sequences: list[list[list[int]]] = []  # (B, size), where the context can be filled

    def prefill(self) -> Tensor:
        return self._prefill_rows(self.rows)

    def _prefill_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        """Begin with these rows, whatever was before."""
        prefilled = self.adapter.prefill(rows)
        self.cache, self.lengths, self.source_keep = prefilled.cache, prefilled.lengths, prefilled.source_keep
        self.sequences = self._initial_sequences(rows)
        self.keep = None if prefilled.keep is None else prefilled.keep[:, None]
        self.key_times = torch.arange(self.cache.length, device=prefilled.logits.device)
        self.expand_to_beams(self.beam_size)
        return prefilled.logits

    def _initial_sequences(self, rows: Sequence[TokenIds]) -> list[list[list[int]]]:
        return (
            [[self.adapter.initial_tokens(row)] * self.beam_size for row in rows]
            if self.adapter.sliding_context
            else []
        )

    def expand_to_beams(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.sequences = [[sequences[0]] * beam_size for sequences in self.sequences]
        if beam_size > 1:
            self.keep = self._ensure_keep()[:, :1].expand(-1, beam_size, -1)

    def _ensure_keep(self) -> Tensor:
        if self.keep is None:
            self.key_times = torch.arange(self.cache.length, device=self.key_times.device)
            self.keep = self.key_times.new_ones(
                (len(self.lengths), self.beam_size, len(self.key_times)), dtype=torch.bool
            )
        return self.keep

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        token_grid = tokens.view(len(self.lengths), self.beam_size)
        full_rows = [
            row
            for row, length in enumerate(self.lengths)
            if self.adapter.sliding_context and length == self.adapter.max_len
        ]
        self._record_tokens(token_grid, parents)
        if full_rows and (self.beam_size > 1 or len(full_rows) == len(self.lengths)):
            return self._prefill_sequences_again().view(*tokens.shape, -1)
        logits = self.adapter.decode_step(
            token_grid, self._step_layout(parents), self.cache, self.source_keep
        )  # (B, size, V)
        self.lengths = [length + 1 for length in self.lengths]
        if full_rows:
            prefilled = self.adapter.prefill([self.sequences[row][0] for row in full_rows])
            logits[full_rows, 0] = prefilled.logits
            for row, length in zip(full_rows, prefilled.lengths, strict=True):
                self.lengths[row] = length
            self._write_prefill(prefilled, full_rows)
        return logits.view(*tokens.shape, -1)

    def _record_tokens(self, token_grid: Tensor, parents: Tensor | None) -> None:
        """Write the tokens down, where the texts may have to be read again."""
        if not self.adapter.sliding_context:
            return
        parent_rows = [range(self.beam_size)] * len(token_grid) if parents is None else parents.tolist()
        self.sequences = [
            [
                append_or_slide(sequences[parent], token, self.adapter.max_len)
                for parent, token in zip(row_parents, row, strict=True)
            ]
            for sequences, row_parents, row in zip(self.sequences, parent_rows, token_grid.tolist(), strict=True)
        ]

    def _step_layout(self, parents: Tensor | None) -> BeamLayout | None:
        """The new tokens and what they may read: the past of their parents, and themselves."""
        if self.keep is None:
            return None
        if parents is not None:
            self.keep = self.keep.gather(1, parents[:, :, None].expand(self.keep.shape))
        identity = torch.eye(self.beam_size, dtype=torch.bool, device=self.keep.device).expand(
            len(self.keep), -1, -1
        )
        self.keep = torch.cat([self.keep, identity], dim=2)
        self.key_times = torch.cat([self.key_times, (self.key_times[-1] + 1).expand(self.beam_size)])
        # a full row is read again: any place will do
        position_rows = [[min(length, self.adapter.max_len - 1)] for length in self.lengths]
        positions = torch.tensor(position_rows, device=self.keep.device)
        return BeamLayout(self.keep, self.key_times[-1] - self.key_times, positions.expand(-1, self.beam_size))

    def _prefill_sequences_again(self) -> Tensor:
        """Everything anew; hypotheses of one row have parted, so each is read by itself. (B · size, V)"""
        sequences, beam_size = self.sequences, self.beam_size
        self.beam_size = 1
        logits = self._prefill_rows([sequence for row in sequences for sequence in row])
        keep = self._ensure_keep().view(len(sequences), beam_size, -1)
        for kv_store, _ in self.cache.stores:
            kv_store.interleave_beams(beam_size)
        identity = torch.eye(beam_size, dtype=torch.bool, device=keep.device)
        self.keep = None if beam_size == 1 and keep.all() else (keep[..., None] & identity[:, None]).flatten(2)
        self.key_times = self.key_times.repeat_interleave(beam_size)
        self.beam_size, self.sequences, self.lengths = beam_size, sequences, self.lengths[::beam_size]
        return logits

    def select(self, rows: Tensor) -> None:
        indices = rows.tolist()
        if indices == list(range(len(self.lengths))):
            return
        self.cache.select(rows)
        self.lengths = [self.lengths[index] for index in indices]
        self.sequences = [self.sequences[index] for index in indices] if self.sequences else []
        self.keep = None if self.keep is None else self.keep[rows]
        self.source_keep = None if self.source_keep is None else self.source_keep[rows]

    def append_rows(self, rows: Sequence[TokenIds]) -> Tensor:
        if not self.lengths:
            return self._prefill_rows(rows)
        prefilled = self.adapter.prefill(rows)
        n_before = len(self._ensure_keep())
        self.source_keep = self.cache.append_sources(prefilled.cache, self.source_keep, prefilled.source_keep)
        self.lengths = self.lengths + prefilled.lengths
        self.sequences = self.sequences + self._initial_sequences(rows)
        self._write_prefill(prefilled, list(range(n_before, n_before + len(rows))))
        return prefilled.logits

    def _write_prefill(self, prefilled: Prefill, rows: list[int]) -> None:
        """Put what was read at the end of these rows' keys; what no row needs any more is left behind."""
        keep, width = self._ensure_keep(), prefilled.cache.length
        n_added, device = len(self.lengths) - len(keep), keep.device
        used_columns = keep.any(dim=1).any(dim=0).nonzero()
        first_time = min(int(self.key_times[used_columns[0, 0]]), int(self.key_times[-1]) - width + 1)
        n_front = int(self.key_times[0]) - first_time
        if n_front < 0:
            n_front = -int(torch.searchsorted(self.key_times, first_time))
        for kv_store, _ in self.cache.stores:
            kv_store.extend(extra_rows=n_added, front_padding=n_front)
        self.key_times = torch.cat(
            [
                torch.arange(first_time, first_time + max(n_front, 0), device=device),
                self.key_times[max(-n_front, 0) :],
            ]
        )
        self.keep = keep.new_zeros(len(keep) + n_added, self.beam_size, len(self.key_times))
        self.keep[: len(keep), :, max(n_front, 0) :] = keep[:, :, max(-n_front, 0) :]
        row_indices = torch.tensor(rows, device=device)
        write_columns = torch.searchsorted(
            self.key_times, torch.arange(width, device=device) + (self.key_times[-1] - width + 1)
        )
        for (kv_store, _), (new_store, _) in zip(self.cache.stores, prefilled.cache.stores, strict=True):
            kv_store.write(row_indices, write_columns, new_store.key_value())
        self.keep[row_indices] = False
        valid = prefilled.keep if prefilled.keep is not None else keep.new_ones(len(rows), width)
        for beam in range(self.beam_size):
            self.keep[row_indices[:, None], beam, write_columns] = valid
