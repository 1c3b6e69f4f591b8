"""Decoding by replay: rows go through a fixed number of slots, and the host looks at them every few steps.

What a slot's step is, recorded as a graph, is remembered for as long as its model lives.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from triform.config import DecodeConfig
from triform.generation.adapters import GenerationAdapter, TokenIds
from triform.generation.beam import BackPointers, BeamState, StoppingCriteria, backtrace
from triform.generation.sampling import TokenSampler
from triform.generation.slots import (
    STEPS_PER_SYNC,
    BeamPicker,
    DecodeSlots,
    GreedyPicker,
    PrefilledRows,
    SamplePicker,
    SlotShape,
    TokenPicker,
)
from triform.nn.loss import check_finite
from triform.progress import report_progress

MAX_HYPOTHESES = 640  # hypotheses that are written at once
CACHE_MEMORY_FRACTION = 0.1  # of a card's memory, for what is remembered of them
MAX_PREFILL_TOKENS = 1 << 14  # tokens that are read ahead of their turn, and at most so many rows:
MAX_PREFILL_ROWS = 256
MAX_CACHED_SLOTS = 8  # sets of slots that a model keeps

_SLOTS_BY_MODEL: WeakKeyDictionary[nn.Module, OrderedDict[object, DecodeSlots]] = WeakKeyDictionary()


def next_power_of_two(n: int, minimum: int = 1) -> int:
    """The next power of two: few sizes, so that few graphs are recorded."""
    return max(minimum, 1 << (n - 1).bit_length())


def device_memory(device: torch.device) -> float:
    """Bytes that a card has; elsewhere there is no need to count."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


def max_slots(beam_size: int, bytes_per_row: int, memory: float) -> int:
    """How many rows of `size` hypotheses are written at once: a power of two, of little memory."""
    n_fitting = min(MAX_HYPOTHESES // beam_size, CACHE_MEMORY_FRACTION * memory // bytes_per_row)
    return 1 << (max(1, int(n_fitting)).bit_length() - 1)


@dataclass
class RowState:
    """A row that is being written: what it began with, and every step since."""

    row: int
    prefixes: list[list[int]]  # of each hypothesis; the same for all, until they are read again
    back_pointers: BackPointers = field(default_factory=list)
    n_steps_before_prefix: int = 0  # steps before `starts`

    @property
    def length(self) -> int:
        return len(self.prefixes[0]) + len(self.back_pointers) - self.n_steps_before_prefix

    def sequences(self) -> list[list[int]]:
        """What each hypothesis goes on from."""
        result = []
        for hypothesis in range(len(self.prefixes)):
            root = hypothesis
            for _, parents in reversed(self.back_pointers[self.n_steps_before_prefix :]):
                root = int(parents[root])
            n_steps = len(self.back_pointers) - self.n_steps_before_prefix
            result.append(
                self.prefixes[root]
                + backtrace(self.back_pointers[self.n_steps_before_prefix :], n_steps, hypothesis)
            )
        return result


class GraphDecoder:
    """Rows in their order, each written in a slot of its own; when it is done, the slot is another's."""

    def __init__(
        self,
        adapter: GenerationAdapter,
        rows: Sequence[TokenIds],
        stopping: StoppingCriteria,
        strategy: str,
        config: DecodeConfig,
    ) -> None:
        self.adapter, self.rows, self.stopping, self.strategy, self.config = (
            adapter,
            rows,
            stopping,
            strategy,
            config,
        )
        self.beam_size = config.beam_size if strategy == "beam" else 1
        self.outputs: list[list[int]] = [[] for _ in rows]
        self.waiting = deque(range(len(rows)))
        self.prefilled: deque[tuple[int, PrefilledRows, int]] = deque()  # rows that were read, and where
        self.active: dict[int, RowState] = {}  # by slot

    @torch.inference_mode()
    def run(self, seeds: Sequence[int]) -> list[list[int]]:
        self._prefill_ahead()
        self.slots = self._get_slots(self.prefilled[0][1])
        sampler = TokenSampler(self.config, seeds)
        while self.active or self.prefilled or self.waiting:
            self._fill_slots()
            n_steps = self._count_steps()
            if isinstance(self.slots.picker, SamplePicker):
                self.slots.picker.uniforms[:n_steps] = self._draw_uniforms(sampler, n_steps).to(
                    self.slots.picker.uniforms.device
                )
            tokens, parents = self.slots.run(self.adapter, n_steps)
            check_finite(self.slots.logits[list(self.active)])
            for slot, row_state in self.active.items():
                step_parents = parents or [[[0]] * self.slots.shape.n_rows] * n_steps
                row_state.back_pointers += [
                    (tokens[step][slot], step_parents[step][slot]) for step in range(n_steps)
                ]
            self._collect_finished()
            self._slide_contexts()
            n_left = len(self.active) + len(self.prefilled) + len(self.waiting)
            report_progress("decoding", len(self.rows) - n_left, len(self.rows))
        return self.outputs

    def _prefill_ahead(self) -> None:
        """Read the next rows, many at a time, whether or not there are slots for them yet."""
        longest = len(self.rows[self.waiting[0]])
        count = min(len(self.waiting), MAX_PREFILL_ROWS, max(1, MAX_PREFILL_TOKENS // max(1, longest)))
        rows = [self.waiting.popleft() for _ in range(count)]
        prefilled = PrefilledRows(self.adapter.prefill([self.rows[row] for row in rows]))
        self.prefilled.extend((row, prefilled, index) for index, row in enumerate(rows))

    def _get_slots(self, prefilled: PrefilledRows) -> DecodeSlots:
        """Slots of the right shape: those of the last time, unless the weights have moved since."""
        lengths = [len(self.adapter.initial_tokens(row)) for row in self.rows]
        limit = max(self.stopping.limits)
        longest = min(self.adapter.max_len, max(map(sum, zip(lengths, self.stopping.limits, strict=True))))
        model, device = self.adapter.model, prefilled.logits.device
        source_len = 0 if prefilled.source_kv is None else next_power_of_two(max(map(len, self.rows)), minimum=16)
        cache_len = next_power_of_two(longest, minimum=64)
        bytes_per_token = prefilled.kv[:, :, 0, :, 0].numel() * prefilled.kv.element_size()
        max_rows = max_slots(
            self.beam_size, bytes_per_token * (cache_len * self.beam_size + source_len), device_memory(device)
        )
        shape = SlotShape(min(max_rows, next_power_of_two(len(self.rows))), self.beam_size, cache_len, source_len)
        weight_pointers = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
        settings_key: tuple[object, ...] = (self.stopping.eos, self.stopping.banned)
        if self.strategy == "sample":
            settings_key += (self.config.temperature, self.config.top_k, self.config.top_p)
        if self.strategy == "beam":
            settings_key += (self.config.length_penalty, next_power_of_two(limit))
        cached, key = (
            _SLOTS_BY_MODEL.setdefault(model, OrderedDict()),
            (shape, self.strategy, settings_key, prefilled.kv.dtype, weight_pointers),
        )
        if key not in cached:
            while len(cached) >= MAX_CACHED_SLOTS:
                cached.popitem(last=False)
            cached[key] = DecodeSlots(self.adapter, self._build_picker(shape, device), shape, prefilled.prefill)
        cached.move_to_end(key)
        return cached[key]

    def _build_picker(self, shape: SlotShape, device: torch.device) -> TokenPicker:
        if self.strategy == "sample":
            return SamplePicker(self.stopping.banned, device, self.config, shape.n_rows)
        if self.strategy == "greedy":
            return GreedyPicker(self.stopping.banned, device)
        stopping = StoppingCriteria(
            eos=self.stopping.eos,
            limits=(next_power_of_two(max(self.stopping.limits)),),
            banned=self.stopping.banned,
        )
        beam_state = BeamState(
            stopping, beam_size=self.beam_size, length_penalty=self.config.length_penalty, device=device
        )
        beam_state.append_rows([1] * shape.n_rows)
        return BeamPicker(beam_state)

    def _fill_slots(self) -> None:
        """Let rows into free slots, some at a time: each time costs as much as a few steps."""
        n_slots = self.slots.shape.n_rows
        free_slots = [slot for slot in range(n_slots) if slot not in self.active]
        if self.active and 4 * len(free_slots) < n_slots:
            return
        while free_slots and (self.prefilled or self.waiting):
            if not self.prefilled:
                self._prefill_ahead()
            prefilled = self.prefilled[0][1]
            admitted: list[tuple[int, int]] = []
            while len(admitted) < len(free_slots) and self.prefilled and self.prefilled[0][1] is prefilled:
                row, _, index = self.prefilled.popleft()
                admitted.append((row, index))
            target_slots, free_slots = free_slots[: len(admitted)], free_slots[len(admitted) :]
            self.slots.admit(target_slots, prefilled, [index for _, index in admitted])
            for slot, (row, _) in zip(target_slots, admitted, strict=True):
                self.active[slot] = RowState(row, [self.adapter.initial_tokens(self.rows[row])] * self.beam_size)
            if isinstance(self.slots.picker, BeamPicker):
                limits = [self.stopping.limits[row] for row, _ in admitted]
                self.slots.picker.beam_state.reset_rows(
                    torch.tensor(target_slots, device=prefilled.logits.device), limits
                )

    def _count_steps(self) -> int:
        """How many steps until the host must look: until all are done, or the first text can be read no longer."""
        n_left = max(
            self.stopping.limits[row_state.row] - len(row_state.back_pointers) for row_state in self.active.values()
        )
        if self.adapter.sliding_context:
            n_left = min(
                n_left, *(self.adapter.max_len + 1 - row_state.length for row_state in self.active.values())
            )
        return max(1, min(STEPS_PER_SYNC, n_left))

    def _draw_uniforms(self, sampler: TokenSampler, n_steps: int) -> Tensor:  # (n, B)
        uniforms = torch.zeros(n_steps, self.slots.shape.n_rows, dtype=torch.float64)
        for slot, row_state in self.active.items():
            uniforms[:, slot] = sampler.draw_uniforms(row_state.row, n_steps)
        return uniforms

    def _collect_finished(self) -> None:
        """Rows that are done leave their slots."""
        if isinstance(self.slots.picker, BeamPicker):
            tensors = self.slots.picker.beam_state.tensors
            is_done, depth, hypothesis = (tensors[name].tolist() for name in ("over", "depth", "which"))
            finished = {
                slot: backtrace(row_state.back_pointers, depth[slot], hypothesis[slot])
                for slot, row_state in self.active.items()
                if is_done[slot]
            }
        else:
            finished = {
                slot: tokens
                for slot, row_state in self.active.items()
                if (tokens := self._finished_tokens(row_state)) is not None
            }
        for slot, tokens in finished.items():
            self.outputs[self.active.pop(slot).row] = tokens

    def _finished_tokens(self, row_state: RowState) -> list[int] | None:
        limit = self.stopping.limits[row_state.row]
        generated = [int(tokens[0]) for tokens, _ in row_state.back_pointers[: max(1, limit)]]
        if self.stopping.eos in generated:
            return generated[: generated.index(self.stopping.eos)]
        return generated if len(generated) >= limit else None

    def _slide_contexts(self) -> None:
        """Texts that the model can read no longer go on from their newer half."""
        full_slots = [
            slot
            for slot, row_state in self.active.items()
            if self.adapter.sliding_context and row_state.length > self.adapter.max_len
        ]
        if not full_slots:
            return
        half = self.adapter.max_len // 2 + 1  # the newest token comes on top
        sequences = []
        for slot in full_slots:
            row_state = self.active[slot]
            row_state.prefixes = [sequence[-half:] for sequence in row_state.sequences()]
            row_state.n_steps_before_prefix = len(row_state.back_pointers)
            sequences += row_state.prefixes
        prefilled = PrefilledRows(self.adapter.prefill(sequences))
        self.slots.admit(full_slots, prefilled, range(len(sequences)), separate_hypotheses=self.beam_size > 1)


def graph_decode(
    adapter: GenerationAdapter,
    rows: Sequence[TokenIds],
    config: DecodeConfig,
    stopping: StoppingCriteria,
    *,
    strategy: str,
    seeds: Sequence[int],
) -> list[list[int]]:
    """New tokens for each row, the end token left out."""
    return GraphDecoder(adapter, rows, stopping, strategy, config).run(seeds)
