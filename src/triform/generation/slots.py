"""A decoding step that is the same every time, so that a GPU can replay it as one graph.

There is room for a fixed number of rows, each with a fixed number of hypotheses and of keys. A step chooses tokens
from the scores, writes them down, and makes the next scores; whatever changes from step to step, clock and
positions included, is a tensor on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from triform.config import DecodeConfig
from triform.generation.adapters import GenerationAdapter, Prefill
from triform.generation.beam import NEG_INF, BeamState
from triform.generation.sampling import sample_from_uniform
from triform.nn.kernels.cuda_graph import capture_cuda_graph
from triform.nn.kv_cache import StaticKVCache
from triform.nn.layouts import BeamLayout

log = logging.getLogger("triform")
STEPS_PER_SYNC = 16  # that are replayed before the host looks at what was written


class TokenPicker(Protocol):
    """How hypotheses go on: scores (B, size, V) -> tokens and parents (B, size); all on the device."""

    def __call__(self, logits: Tensor, step_index: Tensor) -> tuple[Tensor, Tensor | None]: ...


class GreedyPicker:
    def __init__(self, banned: Sequence[int], device: torch.device) -> None:
        self.banned = torch.tensor(banned, dtype=torch.long, device=device)

    def __call__(self, logits: Tensor, step_index: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.index_fill(-1, self.banned, NEG_INF).argmax(dim=-1), None


class SamplePicker(GreedyPicker):
    """Random numbers are drawn beforehand, a few steps at a time, from each row's own generator."""

    def __init__(self, banned: Sequence[int], device: torch.device, config: DecodeConfig, n_rows: int) -> None:
        super().__init__(banned, device)
        self.config = config
        self.uniforms = torch.zeros(STEPS_PER_SYNC, n_rows, dtype=torch.float64, device=device)

    def __call__(self, logits: Tensor, step_index: Tensor) -> tuple[Tensor, Tensor | None]:
        allowed_logits = logits[:, 0].index_fill(-1, self.banned, NEG_INF)
        uniforms = self.uniforms.index_select(0, step_index).T  # (B, 1)
        return sample_from_uniform(allowed_logits, uniforms, self.config)[:, None], None


class BeamPicker:
    """Beam search."""

    def __init__(self, beam_state: BeamState) -> None:
        self.beam_state = beam_state

    def __call__(self, logits: Tensor, step_index: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.beam_state.advance(logits)


class SlotShape(NamedTuple):
    """How much there is room for."""

    n_rows: int
    beam_size: int  # hypotheses of a row
    cache_len: int  # tokens of a text that are remembered
    source_len: int  # tokens of a source


class DecodeSlots:
    """The rows that are being written, each in a slot of its own, and the step that all of them take."""

    def __init__(self, adapter: GenerationAdapter, picker: TokenPicker, shape: SlotShape, prefill: Prefill) -> None:
        """`read` shows what keys, values and scores look like."""
        self.picker, self.shape = picker, shape
        n_rows, beam_size, cache_len, source_len = shape
        example_keys, logits = prefill.cache.stores[0][0].key_value()[0], prefill.logits
        n_layers, n_heads, head_dim = len(prefill.cache.stores), example_keys.shape[1], example_keys.shape[3]
        device = logits.device
        self.kv_buffer = example_keys.new_zeros(n_layers, 2, n_rows, n_heads, cache_len * beam_size, head_dim)
        self.source_kv = (
            example_keys.new_zeros(n_layers, 2, n_rows, n_heads, source_len, head_dim) if source_len else None
        )
        self.source_keep = torch.ones(n_rows, source_len, dtype=torch.bool, device=device) if source_len else None
        self.keep = torch.zeros(n_rows, beam_size, cache_len * beam_size, dtype=torch.bool, device=device)
        self.logits = logits.new_zeros(n_rows, beam_size, logits.shape[-1])
        self.newest_column = torch.zeros(1, dtype=torch.long, device=device)  # the newest column
        self.step_index = torch.zeros(1, dtype=torch.long, device=device)  # since the host last looked
        self.positions = torch.zeros(n_rows, 1, dtype=torch.long, device=device)  # of the next token in its text
        self.write_indices = torch.arange(beam_size, device=device)  # of the newest keys
        self.identity = torch.eye(beam_size, dtype=torch.bool, device=device)
        self.key_columns = torch.arange(cache_len, device=device).repeat_interleave(beam_size)
        self.tokens = torch.zeros(STEPS_PER_SYNC, n_rows, beam_size, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.cache = StaticKVCache(self.kv_buffer, self.source_kv, self.write_indices)
        self.graph = self._capture_graph(adapter) if _supports_cuda_graphs(device) else None

    def _step(self, adapter: GenerationAdapter) -> None:
        """One step. Nothing here waits for the device, or depends on a number that the host knows."""
        n_rows, beam_size, cache_len, _ = self.shape
        tokens, parents = self.picker(self.logits, self.step_index)
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
        # a row that is done goes on until the host looks: its place in the text must still be one
        positions = self.positions.clamp(max=adapter.max_len - 1).expand(n_rows, beam_size)
        layout = BeamLayout(self.keep, key_ages, positions)
        self.logits.copy_(adapter.decode_step(tokens, layout, self.cache, self.source_keep))
        self.step_index.add_(1)
        self.positions.add_(1)

    def _capture_graph(self, adapter: GenerationAdapter) -> torch.cuda.CUDAGraph | None:
        """The step as a graph, recorded while nobody is in the slots; None where that cannot be done."""
        try:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._step(adapter)
            torch.cuda.current_stream().wait_stream(stream)
            return capture_cuda_graph(lambda: self._step(adapter))
        except RuntimeError as error:
            torch.cuda.synchronize()
            log.warning("decoding step by step, since a graph could not be recorded: %s", str(error).split("\n")[0])
            return None

    def run(self, adapter: GenerationAdapter, n_steps: int) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Take n steps (at most STEPS); the tokens and parents of each: (n, B, size)."""
        self.step_index.zero_()  # here and not after: who was interrupted may have left it anywhere
        for _ in range(n_steps):
            if self.graph is None:
                self._step(adapter)
            else:
                self.graph.replay()
        parents = self.parents[:n_steps].tolist() if self.shape.beam_size > 1 else []
        return self.tokens[:n_steps].tolist(), parents

    def admit(
        self,
        slots: Sequence[int],
        prefilled: PrefilledRows,
        rows: Sequence[int],
        *,
        separate_hypotheses: bool = False,
    ) -> None:
        """Put rows that were read into slots. `apart`: each hypothesis was read by itself, a row's one by one."""
        beam_size, cache_len = self.shape.beam_size, self.shape.cache_len
        slot_indices, row_indices = (
            torch.tensor(indices, device=self.newest_column.device) for indices in (slots, rows)
        )
        width = prefilled.kv.shape[4]
        offsets = torch.arange(1 - width, 1, device=self.newest_column.device)
        write_columns = (self.newest_column + offsets).remainder(cache_len) * beam_size  # (P)
        self.keep[slot_indices] = False
        for beam in range(beam_size if separate_hypotheses else 1):
            selected_rows = row_indices[beam :: beam_size if separate_hypotheses else 1]
            new_kv = prefilled.kv[:, :, selected_rows].permute(2, 4, 0, 1, 3, 5)  # (N, P, layers, 2, G, Dh)
            self.kv_buffer[:, :, slot_indices[:, None], :, write_columns + beam] = new_kv
            readers = torch.arange(beam, beam + 1) if separate_hypotheses else torch.arange(beam_size)
            for reader in readers.tolist():
                self.keep[slot_indices[:, None], reader, write_columns + beam] = prefilled.keep[selected_rows]
        logits = prefilled.logits[row_indices]
        self.logits[slot_indices] = (
            logits.view(-1, *self.logits.shape[1:])
            if separate_hypotheses
            else logits[:, None].expand(-1, beam_size, -1)
        )
        self.positions[slot_indices] = prefilled.lengths[
            row_indices[:: beam_size if separate_hypotheses else 1], None
        ]
        if self.source_kv is not None and self.source_keep is not None and prefilled.source_kv is not None:
            source_width = prefilled.source_kv.shape[4]
            self.source_kv[:, :, slot_indices, :, :source_width] = prefilled.source_kv[:, :, row_indices]
            self.source_keep[slot_indices] = False
            self.source_keep[slot_indices, :source_width] = prefilled.source_keep[row_indices]


class PrefilledRows:
    """Rows that were read before there was a slot for them; all layers in one tensor (layers, 2, N, G, P, Dh)."""

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


def _supports_cuda_graphs(device: torch.device) -> bool:
    """Whether steps there can be recorded and replayed."""
    return device.type == "cuda"
