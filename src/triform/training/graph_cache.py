"""Work that is told what to do in a message: on CUDA recorded once for each shape, then replayed as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from triform.nn.kernels.cuda_graph import capture_cuda_graph
from triform.nn.masks import AttentionMask

MAX_GRAPHS = 64
Shapes = tuple[tuple[int, ...], ...]
GraphFn = Callable[[Tensor, Shapes], None]


class GraphCache:
    """The first message of a shape is followed as it is, the second while being recorded, the rest by replaying."""

    def __init__(self, model: nn.Module, device: torch.device, notices: list[str]) -> None:
        """`model` is what the work calls; `notices` hears what a user may want to know of how it went."""
        self.model, self.device, self.notices = model, device, notices
        self.capture_enabled = device.type == "cuda"
        self.memory_pool = torch.cuda.graph_pool_handle() if self.capture_enabled else None
        self.static_inputs: dict[Shapes, Tensor] = {}  # of each shape seen: where its messages lie
        self.graphs: dict[Shapes, torch.cuda.CUDAGraph] = {}
        self.retained_masks: list[object] = []

    def __call__(self, fn: GraphFn, inputs: Tensor, shapes: Shapes) -> None:
        seen_before = shapes in self.static_inputs
        if seen_before:
            self.static_inputs[shapes].copy_(inputs, non_blocking=True)
        else:
            self.static_inputs[shapes] = inputs.to(self.device)
        if seen_before and self.capture_enabled and shapes not in self.graphs:
            self._capture(fn, shapes)
        if shapes in self.graphs:
            self.graphs[shapes].replay()
        else:
            fn(self.static_inputs[shapes], shapes)

    def _capture(self, fn: GraphFn, shapes: Shapes) -> None:
        if len(self.graphs) == MAX_GRAPHS:
            self.capture_enabled = False
            self.notices.append(f"batches have more than {MAX_GRAPHS} shapes: the rest is not recorded")
            return
        try:
            self.graphs[shapes] = capture_cuda_graph(
                lambda: fn(self.static_inputs[shapes], shapes), self.memory_pool
            )
            self.retained_masks.append([mask.cached_tensors() for mask in self._masks()])
        except RuntimeError as error:
            self._disable_capture()
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the step cannot be recorded as a CUDA graph and runs as it is ({reason})")

    def _disable_capture(self) -> None:
        """From here on every step runs as it is. What was made while recording has no numbers in it."""
        self.capture_enabled = False
        self.model.zero_grad(set_to_none=True)
        for mask in self._masks():
            mask.clear_caches()
        self.graphs.clear()  # they draw dropout from a state that is gone, and hold memory that steps may need
        self.retained_masks.clear()
        torch.cuda.empty_cache()

    def _masks(self) -> list[AttentionMask]:
        """The model's rules, which remember masks: a graph that read one will read it again."""
        return [mask for module in self.model.modules() for mask in getattr(module, "layer_masks", ())]


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """On CUDA a stream where graphs can be recorded; elsewhere nothing."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
