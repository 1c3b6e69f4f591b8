"""A batch of requests that are decoded together, one step after the other.

A `Request` asks for the continuation of a prompt or the translation of a source. While it is in the batch it is a
`Row`, which collects the generated tokens. A `TokenPicker` chooses the next token of every row from the logits:
`GreedyPicker` takes the most likely one; `sampling.py` and `beam.py` have the other strategies. A `Backend` holds
the rows and runs the model: `EagerBackend`, in this file, runs one step at a time on any device; `graph.py` has the
back end that replays CUDA graphs. The `Scheduler` in `scheduler.py` decides what a back end does next.

Shapes: n steps, B rows, K hypotheses of a row (1 without beam search), V tokens in the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from triform.errors import NonFiniteError
from triform.generation.adapters import GenerationAdapter, TokenIds

NEG_INF = float("-inf")
MIN_EVICT_FRACTION = 1 / 8  # of the rows must be done before any is removed: removing copies the keys of the others


@dataclass(frozen=True, kw_only=True)
class TokenConstraints:
    """The token that ends a text, and tokens that are never generated."""

    eos: int  # -1: the vocabulary has no end token, and only `Request.max_new_tokens` ends a text
    banned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """One text to generate.

    Args:
        tokens: The prompt of a language model, or the source of a translation.
        max_new_tokens: The text ends after so many tokens, unless the end token comes first.
        seed: Seed for sampling. What a request gets depends on its seed and never on the other requests.
    """

    tokens: TokenIds
    max_new_tokens: int
    seed: int = 0


class Row:
    """A request that is being decoded, with the tokens generated so far."""

    def __init__(self, row_id: int, request: Request, initial_tokens: list[int]) -> None:
        self.id, self.request = row_id, request
        self.output: list[int] = []  # the result, without the end token, once `done`
        self.done = False
        self.prompt: TokenIds = request.tokens  # read by the next prefill
        self.prefill_contexts = [initial_tokens]  # (K): tokens of each hypothesis in the last prefill, or the next
        self.n_steps_before_prefill = 0

    @property
    def n_steps(self) -> int:
        """Decode steps that this row has taken, which is the number of its new tokens."""
        return len(self.output)

    @property
    def context_len(self) -> int:
        """Tokens in the context, the newest one included."""
        return len(self.prefill_contexts[0]) + self.n_steps - self.n_steps_before_prefill

    def contexts(self) -> list[list[int]]:
        """Return the tokens in the context of each hypothesis, the newest one included."""
        return [self.prefill_contexts[0] + self.output[self.n_steps_before_prefill :]]

    def slide_context(self, max_len: int) -> None:
        """Drop the older half of a context of `max_len` tokens and keep the newer half and the newest token."""
        self.prefill_contexts = [context[-(max_len // 2 + 1) :] for context in self.contexts()]
        self.prompt, self.n_steps_before_prefill = self.prefill_contexts[0], self.n_steps


class TokenPicker:
    """Chooses the next token of every row. The subclass of each strategy defines `pick`.

    `pick` works on tensors only, so that it can be captured in a CUDA graph. `indices` are places in the batch: the
    first dimension of the picker's tensors.
    """

    beam_size = 1
    has_row_state = False  # whether it remembers more of a row than `Row` does

    def __init__(self, constraints: TokenConstraints, device: torch.device) -> None:
        self.eos = constraints.eos
        self.banned = torch.tensor(constraints.banned, dtype=torch.long, device=device)
        self.key: tuple[object, ...] = (type(self), constraints)  # pickers with the same key pick the same tokens

    def allocate(self, n_rows: int, n_steps: int) -> None:
        """Prepare tensors for so many rows and steps. From here on they are only changed in place."""

    def make_row(self, row_id: int, request: Request, initial_tokens: list[int]) -> Row:
        """Return a row with the state that the strategy needs."""
        return Row(row_id, request, initial_tokens)

    def add_rows(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        """Prepare for new rows at these indices of the batch; indices past its end make it larger."""

    def select(self, indices: Tensor) -> None:
        """Keep only the rows at these indices, in this order."""

    def draw(self, rows: Sequence[Row | None], n_steps: int) -> None:
        """Draw the random numbers for the next steps of these rows, if the strategy needs any."""

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose tokens (B, K) from logits (B, K, V), in the step (1) since `draw` was called.

        Returns:
            The tokens, and which hypothesis of its row each of them continues (None: its own).
        """
        raise NotImplementedError

    def record(self, rows: Sequence[Row | None], tokens: Tensor, parents: Tensor | None) -> None:
        """Add the tokens (n, B, K) of some steps to their rows, and mark the rows that are done."""
        for row, new_tokens in zip(rows, tokens[:, :, 0].T.tolist(), strict=True):
            if row is None:
                continue
            for token in new_tokens:
                if row.done:  # the rest was generated before the host read the tokens
                    break
                if token != self.eos:
                    row.output.append(token)
                row.done = token == self.eos or len(row.output) >= row.request.max_new_tokens


class GreedyPicker(TokenPicker):
    """Chooses the most likely token."""

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.index_fill(-1, self.banned, NEG_INF).argmax(dim=-1), None


def check_finite(logits: Tensor) -> None:  # (..., V)
    """Raise `NonFiniteError` if any logits are NaN or infinite."""
    if not logits.amax(dim=-1).isfinite().all():
        raise NonFiniteError


class Backend(Protocol):
    """Holds the rows of a batch and runs the model. It decides when admitting and removing rows pays."""

    lock: AbstractContextManager[Any]  # held during a round, where threads must take turns

    def reserve(self, row: Row) -> None:
        """Learn the size of a row that will be admitted later."""

    def admit(self, waiting: deque[Row]) -> None:
        """Move rows from the front of the queue into the batch, as many as there is room for now."""

    def step(self) -> list[Row]:
        """Take one decode step or several, and return the rows that took part, some of them done now."""

    def evict(self, rows: Sequence[Row]) -> None:
        """Remove these rows, which are done, now or when enough of them are."""

    def restart(self, rows: Sequence[Row]) -> None:
        """Prefill these rows again, because their contexts have changed."""

    def close(self) -> None:
        """Release the slots or the memory that the back end uses."""


class EagerBackend:
    """Runs one decode step at a time. Rows join at the end of the batch; when some leave, the others move up."""

    lock: AbstractContextManager[Any] = nullcontext()

    def __init__(self, adapter: GenerationAdapter, picker: TokenPicker, max_rows: int) -> None:
        self.picker, self.max_rows = picker, max_rows
        self.stepper = adapter.build_stepper(picker.beam_size)
        self.rows: list[Row | None] = []  # by index in the batch; None: done, but its keys are still there
        self.joining: list[Row] = []  # rows that are prefilled in the next step
        self.first_step = torch.zeros(1, dtype=torch.long, device=adapter.device)
        self.tokens: Tensor | None = None  # (B, K): chosen in the last step, and not yet fed to the model
        self.parents: Tensor | None = None
        self.restart_logits: Tensor | None = None  # (B, K, V), instead of feeding the tokens

    def reserve(self, row: Row) -> None:
        """Any row fits."""

    def admit(self, waiting: deque[Row]) -> None:
        while waiting and len(self.rows) + len(self.joining) < self.max_rows:
            self.joining.append(waiting.popleft())

    def step(self) -> list[Row]:
        logits = self._next_logits()  # (B, K, V)
        check_finite(logits)
        self.picker.draw(self.rows, 1)
        self.tokens, self.parents = self.picker.pick(logits, self.first_step)
        stepped = [row for row in self.rows if row is not None]
        self.picker.record(self.rows, self.tokens[None], None if self.parents is None else self.parents[None])
        return stepped

    def _next_logits(self) -> Tensor:
        """Feed the chosen tokens, and then prefill the rows that join: all must end in the same column."""
        parts = []
        if self.restart_logits is not None:
            parts.append(self.restart_logits)
        elif self.rows:
            assert self.tokens is not None
            parts.append(self.stepper.step(self.tokens, self.parents))
        if self.joining:
            first_logits = self.stepper.append_rows([row.prompt for row in self.joining])
            parts.append(first_logits[:, None].expand(-1, self.picker.beam_size, -1))
            n_rows = len(self.rows)
            self.picker.add_rows(range(n_rows, n_rows + len(self.joining)), self.joining)
            self.rows += self.joining
        self.joining, self.restart_logits = [], None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def evict(self, rows: Sequence[Row]) -> None:
        self._vacate(rows)
        n_done = self.rows.count(None)
        if n_done and n_done >= MIN_EVICT_FRACTION * len(self.rows):
            self._compact()

    def _vacate(self, rows: Sequence[Row]) -> None:
        leaving = {row.id for row in rows}
        self.rows = [None if row is None or row.id in leaving else row for row in self.rows]

    def _compact(self) -> None:
        """Remove the rows that are done from the batch."""
        assert self.tokens is not None
        indices = self._drop_done_rows()
        self.stepper.select(indices)
        self.tokens = self.tokens[indices]
        self.parents = None if self.parents is None else self.parents[indices]

    def _drop_done_rows(self) -> Tensor:
        """Drop them from `rows` and from the picker, and return the indices of the other rows."""
        unfinished = [index for index, row in enumerate(self.rows) if row is not None]
        self.rows = [self.rows[index] for index in unfinished]
        indices = torch.tensor(unfinished, dtype=torch.long, device=self.first_step.device)
        self.picker.select(indices)
        return indices

    def restart(self, rows: Sequence[Row]) -> None:
        if self.picker.has_row_state:  # every row keeps its index, and all of them are prefilled again
            self._drop_done_rows()
            self.restart_logits = self.stepper.restart([row.contexts() for row in self.rows if row is not None])
        else:  # these rows leave the batch, and join it again at its end
            self._vacate(rows)
            self._compact()
            self.joining += rows

    def close(self) -> None:
        """Nothing is held."""
