"""Capture a function of one input tensor as a CUDA graph for each shape, and replay it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from triform.nn.kernels.cuda_graph import capture_cuda_graph
from triform.nn.kernels.sdpa import clear_mask_cache, mask_cache
from triform.nn.masks import AttentionMask

MAX_GRAPHS = 64
Shapes = tuple[tuple[int, ...], ...]
GraphFn = Callable[[Tensor, Shapes], None]


class GraphCache:
    """Runs a function eagerly for the first input of a shape, captures it for the second, and replays it later.

    Args:
        model: The model that the function calls.
        device: On devices other than CUDA every call is eager.
        notices: Messages to the user are appended here, for example that capturing failed.
    """

    def __init__(self, model: nn.Module, device: torch.device, notices: list[str]) -> None:
        self.model, self.device, self.notices = model, device, notices
        self.capture_enabled = device.type == "cuda"
        self.memory_pool = torch.cuda.graph_pool_handle() if self.capture_enabled else None
        self.static_inputs: dict[Shapes, Tensor] = {}  # for each shape: the buffer that its graph reads
        self.graphs: dict[Shapes, torch.cuda.CUDAGraph] = {}
        self.retained_masks: list[object] = []

    def __call__(self, fn: GraphFn, inputs: Tensor, shapes: Shapes) -> None:
        """Run `fn(inputs, shapes)`, by replaying its graph if there is one."""
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

    @property
    def n_setups(self) -> int:
        """How often a call took longer than a replay, because its shape was new or was captured."""
        return len(self.static_inputs) + len(self.graphs) if self.capture_enabled else 0

    def _capture(self, fn: GraphFn, shapes: Shapes) -> None:
        if len(self.graphs) == MAX_GRAPHS:
            self.capture_enabled = False
            self.notices.append(f"batches have more than {MAX_GRAPHS} shapes; the others run without CUDA graphs")
            return
        try:
            self.graphs[shapes] = capture_cuda_graph(
                lambda: fn(self.static_inputs[shapes], shapes), self.memory_pool
            )
            self.retained_masks.append([mask_cache(mask).tensors() for mask in self._masks()])
        except RuntimeError as error:
            self._disable_capture()
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the step cannot be captured as a CUDA graph and runs eagerly ({reason})")

    def _disable_capture(self) -> None:
        """Run eagerly from now on, and drop tensors of a failed capture, which were never computed."""
        self.capture_enabled = False
        self.model.zero_grad(set_to_none=True)
        for mask in self._masks():
            clear_mask_cache(mask)
        self.graphs.clear()  # their dropout state is lost, and eager steps may need the memory
        self.retained_masks.clear()
        torch.cuda.empty_cache()

    def _masks(self) -> list[AttentionMask]:
        """Return the model's attention masks, whose cached tensors a graph reads at every replay."""
        return [mask for module in self.model.modules() for mask in getattr(module, "layer_masks", ())]


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Use a stream on which CUDA graphs can be captured. This does nothing on other devices."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
