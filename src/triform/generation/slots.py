"""A decode step that is the same every time, so that a GPU can replay it as one CUDA graph.

`DecodeSlots` has a fixed number of slots, each with a fixed number of hypotheses and room for a fixed number of
keys. A step picks tokens from the logits of the previous step, stores them, and runs the model to get the next
logits. Everything that changes from step to step, such as the clock and the positions, is a tensor on the device,
which the step updates.

Shapes: n steps, B slots, K hypotheses of a slot, C columns of the cache, G heads of keys and values, V tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triform.generation.adapters import Prefill, TransformerAdapter
from triform.generation.backend import TokenPicker
from triform.generation.kv_cache import StaticKVCache
from triform.nn.kernels.beams import BeamLayout
from triform.nn.kernels.cuda_graph import capture_cuda_graph

log = logging.getLogger("triform")
STEPS_PER_SYNC = 16  # steps that are replayed before the host reads the tokens


class SlotShape(NamedTuple):
    """The sizes that are fixed when slots are made."""

    n_rows: int
    beam_size: int
    cache_len: int  # tokens of a text whose keys are kept
    source_len: int  # tokens of a source; 0 for a language model


class PrefilledRows:
    """N rows that were prefilled, with the keys and values of all layers in one tensor (layers, 2, N, G, P, Dh)."""

    source_kv: Tensor | None = None

    def __init__(self, prefill: Prefill) -> None:
        self.prefill, self.logits = prefill, prefill.logits
        device, n_rows = self.logits.device, len(self.logits)
        self.kv = torch.stack([torch.stack(self_kv.key_value()) for self_kv, _ in prefill.cache.stores])
        self.keep = torch.ones(n_rows, self.kv.shape[4], dtype=torch.bool, device=device)
        self.keep = self.keep if prefill.keep is None else prefill.keep
        self.lengths = torch.tensor(prefill.lengths, device=device)
        source_pairs = [
            cross_kv.key_value for _, cross_kv in prefill.cache.stores if cross_kv.key_value is not None
        ]
        if source_pairs:
            self.source_kv = torch.stack([torch.stack(key_value) for key_value in source_pairs])
            self.source_keep = torch.ones(n_rows, self.source_kv.shape[4], dtype=torch.bool, device=device)
            self.source_keep = self.source_keep if prefill.source_keep is None else prefill.source_keep


class DecodeSlots:
    """A batch of fixed shape, and the step that all its slots take, captured as a CUDA graph where possible.

    The cache is a ring: all slots share one clock, and each step writes its keys over the oldest column. A row that
    is admitted is written so that its prompt ends in the newest column. `keep` says which keys belong to the past
    of each hypothesis, as in `CachedStepper`.

    Args:
        adapter: The model. It is passed to every call, because slots must not keep a model alive.
        picker: Chooses the tokens. No other slots use it.
        shape: The fixed sizes.
        example: Any prefill of the model, for the shape and type of its keys, values and logits.
    """

    def __init__(
        self, adapter: TransformerAdapter, picker: TokenPicker, shape: SlotShape, example: Prefill
    ) -> None:
        self.picker, self.shape = picker, shape
        n_rows, beam_size, cache_len, source_len = shape
        example_keys, logits = example.cache.stores[0][0].key_value()[0], example.logits
        n_layers, n_heads, head_dim = len(example.cache.stores), example_keys.shape[1], example_keys.shape[3]
        device = logits.device
        picker.allocate(n_rows, STEPS_PER_SYNC)
        self.kv_buffer = example_keys.new_zeros(n_layers, 2, n_rows, n_heads, cache_len * beam_size, head_dim)
        self.source_kv = (
            example_keys.new_zeros(n_layers, 2, n_rows, n_heads, source_len, head_dim) if source_len else None
        )
        self.source_keep = torch.ones(n_rows, source_len, dtype=torch.bool, device=device) if source_len else None
        self.keep = torch.zeros(n_rows, beam_size, cache_len * beam_size, dtype=torch.bool, device=device)
        self.logits = logits.new_zeros(n_rows, beam_size, logits.shape[-1])
        self.newest_column = torch.zeros(1, dtype=torch.long, device=device)  # the clock, modulo the cache's length
        self.step_index = torch.zeros(1, dtype=torch.long, device=device)  # steps since the host last read tokens
        self.positions = torch.zeros(n_rows, 1, dtype=torch.long, device=device)  # of the next token in its text
        self.write_indices = torch.arange(beam_size, device=device)  # where the next keys are written
        self.identity = torch.eye(beam_size, dtype=torch.bool, device=device)
        self.key_columns = torch.arange(cache_len, device=device).repeat_interleave(beam_size)
        self.tokens = torch.zeros(STEPS_PER_SYNC, n_rows, beam_size, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.cache = StaticKVCache(self.kv_buffer, self.source_kv, self.write_indices)
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}  # by mode of the picker
        self._capture_graph(adapter, lambda: self._step(adapter))

    def _step(self, adapter: TransformerAdapter) -> None:
        """Take one step. It never waits for the device and does not depend on numbers on the host."""
        n_rows, beam_size, cache_len, _ = self.shape
        tokens, parents = self.picker.pick(self.logits, self.step_index)
        self.tokens.index_copy_(0, self.step_index, tokens[None])
        if parents is not None:
            self.parents.index_copy_(0, self.step_index, parents[None])
            self.keep.copy_(self.keep.gather(1, parents[:, :, None].expand(self.keep.shape)))
        self.newest_column.add_(1).remainder_(cache_len)
        torch.add(
            self.newest_column * beam_size,
            torch.arange(beam_size, device=self.newest_column.device),
            out=self.write_indices,
        )
        self.keep.index_copy_(2, self.write_indices, self.identity.expand(n_rows, beam_size, beam_size))
        key_ages = (self.newest_column - self.key_columns).remainder(cache_len)
        # A finished row continues until the host reads the tokens: its position must stay below max_len.
        positions = self.positions.clamp(max=adapter.max_len - 1).expand(n_rows, beam_size)
        layout = BeamLayout(self.keep, key_ages, positions)
        self.logits.copy_(adapter.decode_step(tokens, layout, self.cache, self.source_keep))
        self.step_index.add_(1)
        self.positions.add_(1)

    def _capture_graph(self, adapter: TransformerAdapter, warm_up: Callable[[], object]) -> None:
        """Capture the step for the current mode of the picker, if the device can and nothing fails.

        `warm_up` runs what was never run before. At first that is the whole step, while all slots are empty.
        """
        mode = self.picker.mode
        self.graphs[mode] = None
        if not _supports_cuda_graphs(self.logits.device):
            return
        try:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    warm_up()
            torch.cuda.current_stream().wait_stream(stream)
            pool = next((graph.pool() for graph in self.graphs.values() if graph is not None), None)
            self.graphs[mode] = capture_cuda_graph(lambda: self._step(adapter), pool)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).split("\n")[0]
            log.warning("decoding without a CUDA graph, because it could not be captured: %s", reason)

    def run(self, adapter: TransformerAdapter, n_steps: int) -> tuple[Tensor, Tensor]:
        """Take up to STEPS_PER_SYNC steps and return the tokens and parents (n, B, K) that they picked."""
        self.step_index.zero_()  # before the steps and not after: an interrupted call may have left it anywhere
        if self.picker.mode not in self.graphs:  # only pickers without a state of their rows have several modes
            self._capture_graph(adapter, lambda: self.picker.pick(self.logits, self.step_index))
        graph = self.graphs[self.picker.mode]
        for _ in range(n_steps):
            if graph is None:
                self._step(adapter)
            else:
                graph.replay()
        return self.tokens[:n_steps], self.parents[:n_steps]

    def admit(
        self,
        slots: Sequence[int],
        prefilled: PrefilledRows,
        rows: Sequence[int],
        *,
        separate_hypotheses: bool = False,
    ) -> None:
        """Put prefilled rows into slots, replacing their earlier content.

        Args:
            slots: The slots to fill.
            prefilled: The rows, among others.
            rows: Which of them to take, one for each slot.
            separate_hypotheses: Whether every hypothesis of a slot was prefilled separately. `rows` then has one
                entry for each hypothesis, those of a slot next to each other.
        """
        beam_size, cache_len = self.shape.beam_size, self.shape.cache_len
        n_separate = beam_size if separate_hypotheses else 1  # rows of each slot
        slot_indices, row_indices = (
            torch.tensor(indices, device=self.newest_column.device) for indices in (slots, rows)
        )
        offsets = torch.arange(1 - prefilled.kv.shape[4], 1, device=self.newest_column.device)
        write_columns = (self.newest_column + offsets).remainder(cache_len) * beam_size  # (P)
        self.keep[slot_indices] = False
        for index in range(n_separate):
            selected_rows = row_indices[index::n_separate]
            new_kv = prefilled.kv[:, :, selected_rows].permute(2, 4, 0, 1, 3, 5)  # (N, P, layers, 2, G, Dh)
            self.kv_buffer[:, :, slot_indices[:, None], :, write_columns + index] = new_kv
            for hypothesis in [index] if separate_hypotheses else range(beam_size):
                self.keep[slot_indices[:, None], hypothesis, write_columns + index] = prefilled.keep[selected_rows]
        logits = prefilled.logits[row_indices].view(len(slot_indices), n_separate, -1)
        self.logits[slot_indices] = logits.expand(-1, beam_size, -1)
        self.positions[slot_indices] = prefilled.lengths[row_indices[::n_separate], None]
        if self.source_kv is not None and self.source_keep is not None and prefilled.source_kv is not None:
            source_width = prefilled.source_kv.shape[4]
            self.source_kv[:, :, slot_indices, :, :source_width] = prefilled.source_kv[:, :, row_indices]
            self.source_keep[slot_indices] = False
            self.source_keep[slot_indices, :source_width] = prefilled.source_keep[row_indices]

    def copy_rows(self, other: DecodeSlots) -> None:
        """Copy all rows from smaller slots, to the same places."""
        n_rows, beam_size, cache_len, source_len = other.shape
        ages = torch.arange(cache_len, device=self.newest_column.device)
        old_columns, new_columns = (
            ((slots.newest_column - ages).remainder(slots.shape.cache_len) * beam_size)[:, None]
            + torch.arange(beam_size, device=ages.device)
            for slots in (other, self)
        )
        old_columns, new_columns = old_columns.flatten(), new_columns.flatten()
        self.kv_buffer[:, :, :n_rows, :, new_columns] = other.kv_buffer[:, :, :, :, old_columns]
        self.keep[:n_rows] = False
        self.keep[:n_rows, :, new_columns] = other.keep[:, :, old_columns]
        self.logits[:n_rows] = other.logits
        self.positions[:n_rows] = other.positions
        if self.source_kv is not None and self.source_keep is not None:
            assert other.source_kv is not None
            assert other.source_keep is not None
            self.source_kv[:, :, :n_rows, :, :source_len] = other.source_kv
            self.source_keep[:n_rows] = False
            self.source_keep[:n_rows, :source_len] = other.source_keep
        self.picker.copy_rows(other.picker, n_rows)


def _supports_cuda_graphs(device: torch.device) -> bool:
    return device.type == "cuda"
