"""The back end for CUDA: a decode step is captured once as a CUDA graph and then replayed.

A graph replays the same kernels on the same memory, so the batch is a fixed number of slots (`DecodeSlots` in
`slots.py`), each with room for a fixed number of tokens. A row that is done leaves its slot to another row. The
host reads the generated tokens only every few steps, because each time it has to wait for the device. Capturing a
graph is slow, so slots are kept for the next call with the same model and settings (`SlotsPool`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from triform.generation.adapters import TransformerAdapter
from triform.generation.backend import Row, TokenPicker, check_finite
from triform.generation.slots import STEPS_PER_SYNC, DecodeSlots, PrefilledRows, SlotShape

MAX_GRAPH_HYPOTHESES = 640  # that are decoded at once
CACHE_MEMORY_FRACTION = 0.1  # of the memory of a GPU, for the keys and values of all slots
MAX_PREFILL_TOKENS = 1 << 14  # in one prefill, which may read rows before there is a slot for them
MAX_PREFILL_ROWS = 256
MIN_FREE_FRACTION = 1 / 4  # of the slots must be free before rows are admitted, which costs as much as a few steps
MAX_IDLE_SLOTS = 8  # sets of slots that are kept for one model


def next_power_of_two(n: int, minimum: int = 1) -> int:
    """Round up to a power of two. Few different sizes mean that few graphs are captured."""
    return max(minimum, 1 << (n - 1).bit_length())


def device_memory(device: torch.device) -> float:
    """Return the bytes of memory of a GPU; on other devices there is no limit."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


def max_slots(beam_size: int, bytes_per_row: int, memory: float) -> int:
    """Return how many rows of `beam_size` hypotheses are decoded at once: a power of two."""
    n_fitting = min(MAX_GRAPH_HYPOTHESES // beam_size, CACHE_MEMORY_FRACTION * memory // bytes_per_row)
    return 1 << (max(1, int(n_fitting)).bit_length() - 1)


class SlotsPool:
    """Slots that no back end uses at the moment, with their captured graphs.

    A back end takes slots out of the pool and puts them back when it is done, so that two threads never share any.
    The pool forgets the slots of a model that is gone.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: WeakKeyDictionary[nn.Module, list[tuple[object, DecodeSlots]]] = WeakKeyDictionary()

    def acquire(self, model: nn.Module, key: object) -> DecodeSlots | None:
        """Remove slots with this key from the pool and return them; None: there are none."""
        with self._lock:
            idle = self._idle.get(model, [])
            for index, (idle_key, slots) in enumerate(idle):
                if idle_key == key:
                    del idle[index]
                    return slots
            return None

    def release(self, model: nn.Module, key: object, slots: DecodeSlots) -> None:
        """Add slots to the pool, in place of those that were added longest ago if it is full."""
        with self._lock:
            idle = self._idle.setdefault(model, [])
            idle.append((key, slots))
            del idle[:-MAX_IDLE_SLOTS]

    def idle(self, model: nn.Module) -> list[DecodeSlots]:
        """Return the slots that are kept for a model."""
        with self._lock:
            return [slots for _, slots in self._idle.get(model, [])]


POOL = SlotsPool()
GRAPH_LOCK = Lock()  # nothing may be decoded while a graph is captured; threads take turns, as their kernels do


class GraphBackend:
    """Decodes rows in slots, several steps at a time.

    Slots are made for the sizes of the rows that were submitted before the first step. When a row comes that does
    not fit, larger ones are made, and the rows move there. With `max_rows` there are as many slots from the
    beginning, for rows that come later.
    """

    lock: AbstractContextManager[Any] = GRAPH_LOCK

    def __init__(
        self, adapter: TransformerAdapter, make_picker: Callable[[], TokenPicker], max_rows: int | None = None
    ) -> None:
        self.adapter, self.make_picker = adapter, make_picker  # every set of slots has its own picker
        self.picker, self.max_rows = make_picker(), max_rows
        self.n_unfinished = self.max_unfinished = 0
        self.max_text_len = self.max_source_len = 1  # of the rows that were submitted so far
        self.prefilled: deque[tuple[Row, PrefilledRows, int]] = deque()  # rows without a slot: where they were read
        self.slots: DecodeSlots | None = None
        self.slots_key: object = None
        self.rows: list[Row | None] = []  # by slot

    def reserve(self, row: Row) -> None:
        self.n_unfinished += 1
        self.max_unfinished = max(self.max_unfinished, self.n_unfinished)
        text_len = min(self.adapter.max_len, row.context_len + row.request.max_new_tokens)
        self.max_text_len = max(self.max_text_len, text_len)
        self.max_source_len = max(self.max_source_len, len(row.request.tokens))

    def admit(self, waiting: deque[Row]) -> None:
        free_slots = [slot for slot, row in enumerate(self.rows) if row is None]
        has_rows = len(free_slots) < len(self.rows)
        if has_rows and len(free_slots) < MIN_FREE_FRACTION * len(self.rows):
            return
        while self.prefilled or waiting:
            if not self.prefilled:
                self._prefill_ahead(waiting)
            shape = self._needed_shape(self.prefilled[0][1])
            if self.slots is None or any(need > size for need, size in zip(shape, self.slots.shape, strict=True)):
                self._open_slots(shape)
                free_slots = [slot for slot, row in enumerate(self.rows) if row is None]
            if not free_slots:
                return
            n_admitted = self._fill_slots(free_slots)
            free_slots = free_slots[n_admitted:]

    def _prefill_ahead(self, waiting: deque[Row]) -> None:
        """Read the next rows, many at a time, whether or not there are slots for them yet."""
        longest = len(waiting[0].prompt)
        count = min(len(waiting), MAX_PREFILL_ROWS, max(1, MAX_PREFILL_TOKENS // max(1, longest)))
        rows = [waiting.popleft() for _ in range(count)]
        prefilled = PrefilledRows(self.adapter.prefill([row.prompt for row in rows]))
        self.prefilled.extend((row, prefilled, index) for index, row in enumerate(rows))

    def _needed_shape(self, prefilled: PrefilledRows) -> SlotShape:
        """Return the shape of slots that suit all rows submitted so far, as many as the memory allows."""
        beam_size = self.picker.beam_size
        source_len = 0 if prefilled.source_kv is None else next_power_of_two(self.max_source_len, minimum=16)
        cache_len = next_power_of_two(self.max_text_len, minimum=64)
        bytes_per_token = prefilled.kv[:, :, 0, :, 0].numel() * prefilled.kv.element_size()
        bytes_per_row = bytes_per_token * (cache_len * beam_size + source_len)
        max_rows = max_slots(beam_size, bytes_per_row, device_memory(self.adapter.device))
        n_rows = min(max_rows, next_power_of_two(self.max_rows or self.max_unfinished))
        return SlotShape(n_rows, beam_size, cache_len, source_len)

    def _open_slots(self, shape: SlotShape) -> None:
        """Take slots of this shape from the pool, or make new ones; graphs read weights at fixed addresses.

        Rows that are in smaller slots move.
        """
        example, model = self.prefilled[0][1], self.adapter.model
        weight_pointers = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
        if self.slots is not None:
            shape = SlotShape(*map(max, shape, self.slots.shape))
        key = (shape, self.picker.key, example.kv.dtype, weight_pointers)
        slots = POOL.acquire(model, key)
        if slots is None:
            slots = DecodeSlots(self.adapter, self.make_picker(), shape, example.prefill)
        rows = self.rows
        if self.slots is not None:
            slots.copy_rows(self.slots)
            self.close()
        self.slots, self.slots_key = slots, key
        self.rows = [*rows, *[None] * (shape.n_rows - len(rows))]

    def _fill_slots(self, free_slots: Sequence[int]) -> int:
        """Put the next rows that were read together into free slots, and return how many."""
        assert self.slots is not None
        prefilled = self.prefilled[0][1]
        rows: list[Row] = []
        indices: list[int] = []
        while len(rows) < len(free_slots) and self.prefilled and self.prefilled[0][1] is prefilled:
            row, _, index = self.prefilled.popleft()
            rows.append(row)
            indices.append(index)
        target_slots = free_slots[: len(rows)]
        self.slots.admit(target_slots, prefilled, indices)
        self.slots.picker.add_rows(target_slots, rows)
        for slot, row in zip(target_slots, rows, strict=True):
            self.rows[slot] = row
        return len(rows)

    def step(self) -> list[Row]:
        assert self.slots is not None
        stepped = [row for row in self.rows if row is not None]
        n_steps = self._count_steps(stepped)
        self.slots.picker.prepare(self.rows, n_steps)
        tokens, parents = self.slots.run(self.adapter, n_steps)
        check_finite(self.slots.logits[[slot for slot, row in enumerate(self.rows) if row is not None]])
        self.slots.picker.record(self.rows, tokens, parents)
        return stepped

    def _count_steps(self, rows: Sequence[Row]) -> int:
        """Return how many steps to take at once: until all rows are done, or until the first context is full."""
        n_left = max(row.request.max_new_tokens - row.n_steps for row in rows)
        if self.adapter.sliding_context:
            n_left = min(n_left, *(self.adapter.max_len + 1 - row.context_len for row in rows))
        return max(1, min(STEPS_PER_SYNC, n_left))

    def evict(self, rows: Sequence[Row]) -> None:
        leaving = {row.id for row in rows}
        self.rows = [None if row is None or row.id in leaving else row for row in self.rows]
        self.prefilled = deque(entry for entry in self.prefilled if entry[0].id not in leaving)
        self.n_unfinished -= len(rows)

    def restart(self, rows: Sequence[Row]) -> None:
        assert self.slots is not None
        slot_by_row = {row.id: slot for slot, row in enumerate(self.rows) if row is not None}
        prefilled = PrefilledRows(
            self.adapter.prefill([context for row in rows for context in row.prefill_contexts])
        )
        slots = [slot_by_row[row.id] for row in rows]
        n_contexts = len(rows) * self.picker.beam_size
        self.slots.admit(slots, prefilled, range(n_contexts), separate_hypotheses=self.picker.beam_size > 1)

    def close(self) -> None:
        if self.slots is not None:
            POOL.release(self.adapter.model, self.slots_key, self.slots)
        self.slots, self.rows = None, []
