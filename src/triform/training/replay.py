"""Work that is told what to do in a message: on CUDA recorded once for each shape of message, then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from triform.training.recorded import MOST_GRAPHS, Shapes, record


class Replay:
    """The first message of a shape is followed as it is, the second while being recorded, the rest by replaying."""

    def __init__(
        self, device: torch.device, follow: Callable[[Tensor, Shapes], None], remembered: Callable[[], object]
    ) -> None:
        """`remembered` gives what the work keeps for another time: a graph that read it will read it again."""
        self.device, self.follow, self.remembered = device, follow, remembered
        self.kept: list[object] = []
        self.recording = device.type == "cuda"
        self.pool = torch.cuda.graph_pool_handle() if self.recording else None
        self.inputs: dict[Shapes, Tensor] = {}
        self.graphs: dict[Shapes, torch.cuda.CUDAGraph] = {}
        self.notices: list[str] = []  # what a user may want to know of how it went

    def __call__(self, told: Tensor, shapes: Shapes) -> None:
        known = shapes in self.inputs
        if known:
            self.inputs[shapes].copy_(told, non_blocking=True)
        else:
            self.inputs[shapes] = told.to(self.device)
        if known and self.recording and shapes not in self.graphs:
            self._record(shapes)
        if shapes in self.graphs:
            self.graphs[shapes].replay()
        else:
            self.follow(self.inputs[shapes], shapes)

    def _record(self, shapes: Shapes) -> None:
        if len(self.graphs) == MOST_GRAPHS:
            self.recording = False
            self.notices.append(f"batches have more than {MOST_GRAPHS} shapes: the rest is not recorded")
            return
        try:
            self.graphs[shapes] = record(lambda: self.follow(self.inputs[shapes], shapes), self.pool)
            self.kept.append(self.remembered())
        except RuntimeError as error:
            self.recording = False
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the step cannot be recorded as a CUDA graph and runs as it is ({reason})")


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On CUDA a stream where graphs can be recorded; elsewhere nothing."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
