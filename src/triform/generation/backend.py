"""A batch of requests that are decoded together, one step after the other.

A `Request` asks for the continuation of a prompt or the translation of a source. While it is in the batch it is a
`Row`, which collects the generated tokens. A `TokenPicker` chooses the next token of every row from the logits:
`SamplePicker` decodes greedily or samples, with different settings for each row; `beam.py` has the picker for beam
search. A `Backend` holds the rows and runs the model: `EagerBackend`, in this file, runs one step at a time on any
device; `graph.py` has the back end that replays CUDA graphs. The `Scheduler` in `scheduler.py` decides what a back
end does next.

Shapes: n steps, B rows, K hypotheses of a row (1 without beam search), V tokens in the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from triform.config import DecodeConfig
from triform.errors import NonFiniteError
from triform.generation.adapters import GenerationAdapter, TokenIds
from triform.generation.sampling import (
    NEG_INF,
    PickerMode,
    RowSettings,
    fast_topk,
    row_settings,
    sample_from_uniform,
)

GREEDY = DecodeConfig(strategy="greedy")
GREEDY_SETTINGS = row_settings(GREEDY)
MAX_ALTERNATIVES = 20  # that are reported with a token
FinishReason = Literal["stop", "length"]  # the end token, or the limit
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
        decode: The strategy (greedy, sample or beam) and its settings.
        n_logprobs: The number of alternatives to report with each token, with their log probabilities and that of
            the token. 0: none. Beam search reports none.
    """

    tokens: TokenIds
    max_new_tokens: int
    seed: int = 0
    decode: DecodeConfig = GREEDY
    n_logprobs: int = 0


class TokenLogprobs(NamedTuple):
    """The log probability of a token, and the most probable tokens at its place with theirs, the best first.

    They are the log-softmax of the logits over the whole vocabulary, without temperature.
    """

    logprob: float
    alternatives: list[tuple[int, float]]


class Row:
    """A request that is being decoded, with the tokens generated so far."""

    def __init__(self, row_id: int, request: Request, initial_tokens: list[int]) -> None:
        self.id, self.request = row_id, request
        self.output: list[int] = []  # without the end token; beam search sets it when the row is done
        self.logprobs: list[TokenLogprobs] = []  # of each token, if the request asks for them
        self.finish_reason: FinishReason | None = None
        self.prompt: TokenIds = request.tokens  # read by the next prefill
        self.prefill_contexts = [initial_tokens]  # (K): tokens of each hypothesis in the last prefill, or the next
        self.n_steps_before_prefill = 0

    @property
    def done(self) -> bool:
        """Whether the text is complete."""
        return self.finish_reason is not None

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
    mode: Hashable = None  # what `pick` computes for the current rows; each mode is a separate CUDA graph

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

    def copy_rows(self, other: Any, n_rows: int) -> None:
        """Copy what a picker of the same class remembers of its rows."""

    def prepare(self, rows: Sequence[Row | None], n_steps: int) -> None:
        """Prepare for the next steps of these rows, which may have changed since the last call."""

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose tokens (B, K) from logits (B, K, V), in the step (1) since `prepare` was called.

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
                if token == self.eos:
                    row.finish_reason = "stop"
                    break  # the rest was generated before the host read the tokens
                row.output.append(token)
                if len(row.output) >= row.request.max_new_tokens:
                    row.finish_reason = "length"
                    break


class SampledRow(Row):
    """A row with its own random generator."""

    def __init__(self, row_id: int, request: Request, initial_tokens: list[int]) -> None:
        super().__init__(row_id, request, initial_tokens)
        self.generator = torch.Generator().manual_seed(request.seed)
        self.settings = row_settings(request.decode)

    def draw(self, n: int) -> Tensor:
        """Return the next n random numbers. They do not depend on how many are drawn at once."""
        return torch.rand(n, generator=self.generator, dtype=torch.float64)


class SamplePicker(TokenPicker):
    """Chooses the most likely token of each greedy row, and samples the next token of the others.

    The settings of the rows and the random numbers for several steps are written to `inputs`, (4 + n, B), on the
    host, before the steps: four settings of each row, then a random number for each step.
    """

    mode: PickerMode = PickerMode()

    def __init__(self, constraints: TokenConstraints, device: torch.device) -> None:
        super().__init__(constraints, device)
        self.allocate(0, 1)

    def allocate(self, n_rows: int, n_steps: int) -> None:
        device, n_settings = self.banned.device, len(RowSettings._fields)
        self.rows: list[Row | None] = []  # whose settings are in `mode` and `inputs`
        self.inputs = torch.zeros(n_settings + n_steps, n_rows, dtype=torch.float64, device=device)
        # The chosen token's log probability comes first, then those of the alternatives.
        self.logprobs = torch.full((n_steps, n_rows, 1 + MAX_ALTERNATIVES), NEG_INF, device=device).double()
        self.alternatives = torch.zeros(n_steps, n_rows, MAX_ALTERNATIVES, dtype=torch.long, device=device)

    def make_row(self, row_id: int, request: Request, initial_tokens: list[int]) -> Row:
        row_class = SampledRow if request.decode.strategy == "sample" else Row
        return row_class(row_id, request, initial_tokens)

    def prepare(self, rows: Sequence[Row | None], n_steps: int) -> None:
        if rows != self.rows:
            self._change_rows(list(rows), n_steps)
        if self.mode.sample:
            unused = torch.zeros(n_steps, dtype=torch.float64)
            uniforms = [row.draw(n_steps) if isinstance(row, SampledRow) else unused for row in rows]
            n_settings = len(RowSettings._fields)
            self.inputs[n_settings : n_settings + n_steps] = torch.stack(uniforms, dim=1).to(self.inputs.device)

    def _change_rows(self, rows: list[Row | None], n_steps: int) -> None:
        self.mode = required_mode(rows)
        if self.inputs.shape[1] != len(rows):
            self.allocate(len(rows), n_steps)
        if self.mode.sample:
            settings = [row.settings if isinstance(row, SampledRow) else GREEDY_SETTINGS for row in rows]
            columns = torch.tensor(settings, dtype=torch.float64).T
            self.inputs[: len(columns)] = columns.to(self.inputs.device)
        self.rows = rows

    def pick(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor | None]:
        allowed_logits = logits.index_fill(-1, self.banned, NEG_INF)  # (B, 1, V)
        tokens = allowed_logits.argmax(dim=-1) if self.mode.greedy else logits.new_empty(0, dtype=torch.long)
        if self.mode.sample:
            n_settings = len(RowSettings._fields)
            settings = RowSettings(*self.inputs[:n_settings, :, None])
            uniforms = self.inputs.index_select(0, step + n_settings).T  # (B, 1)
            sampled = sample_from_uniform(allowed_logits[:, 0], uniforms, settings, self.mode)[:, None]
            tokens = tokens.where(settings.greedy > 0, sampled) if self.mode.greedy else sampled
        if self.mode.logprobs:
            self._store_logprobs(logits[:, 0], tokens, step)
        return tokens, None

    def _store_logprobs(self, logits: Tensor, tokens: Tensor, step: Tensor) -> None:
        log_probs = logits.double().log_softmax(dim=-1)  # (B, V)
        token_log_probs = log_probs.gather(1, tokens)
        n = min(MAX_ALTERNATIVES, logits.shape[-1])
        top, top_tokens = fast_topk(log_probs.index_fill(-1, self.banned, NEG_INF), n)
        self.logprobs[:, :, : 1 + n].index_copy_(0, step, torch.cat([token_log_probs, top], dim=1)[None])
        self.alternatives[:, :, :n].index_copy_(0, step, top_tokens[None])

    def record(self, rows: Sequence[Row | None], tokens: Tensor, parents: Tensor | None) -> None:
        super().record(rows, tokens, parents)
        if not self.mode.logprobs:
            return
        logprobs, alternatives = self.logprobs.tolist(), self.alternatives.tolist()
        for index, row in enumerate(rows):
            if row is None or not row.request.n_logprobs:
                continue
            for step in range(len(row.output) - len(row.logprobs)):
                logprob, *top = logprobs[step][index]
                pairs = zip(alternatives[step][index], top, strict=True)
                best = [pair for pair in pairs if pair[1] > NEG_INF][: row.request.n_logprobs]
                row.logprobs.append(TokenLogprobs(logprob, best))


def required_mode(rows: Sequence[Row | None]) -> PickerMode:
    """Return what must be computed for these rows. The largest top_k is rounded up, so that few modes exist."""
    sampled = [row.request.decode for row in rows if isinstance(row, SampledRow)]
    max_k = max((decode.top_k for decode in sampled), default=0)
    return PickerMode(
        greedy=any(row is not None and not isinstance(row, SampledRow) for row in rows) or not sampled,
        sample=bool(sampled),
        max_k=1 << (max_k - 1).bit_length() if max_k else 0,
        top_p=any(decode.top_p < 1 for decode in sampled),
        logprobs=any(row is not None and row.request.n_logprobs > 0 for row in rows),
    )


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
        """Remove these rows, which are done or cancelled, now or when enough of them are."""

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
        self.picker.prepare(self.rows, 1)
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
        self.joining = [row for row in self.joining if row.id not in leaving]

    def _compact(self) -> None:
        """Remove the rows that are done from the batch."""
        assert self.tokens is not None
        indices = self._drop_done_rows()
        self.stepper.select(indices)
        self.tokens = self.tokens[indices]
        self.parents = None if self.parents is None else self.parents[indices]
        self.restart_logits = None if self.restart_logits is None else self.restart_logits[indices]

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
