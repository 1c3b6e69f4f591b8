"""Work that is told what to do in a message: on CUDA recorded once for each shape, then replayed as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from triform.nn.graph import record
from triform.nn.masks import Rule

MOST_GRAPHS = 64
Shapes = tuple[tuple[int, ...], ...]
Work = Callable[[Tensor, Shapes], None]


class Replay:
    """The first message of a shape is followed as it is, the second while being recorded, the rest by replaying."""

    def __init__(self, model: nn.Module, device: torch.device, notices: list[str]) -> None:
        """`model` is what the work calls; `notices` hears what a user may want to know of how it went."""
        self.model, self.device, self.notices = model, device, notices
        self.recording = device.type == "cuda"
        self.pool = torch.cuda.graph_pool_handle() if self.recording else None
        self.inputs: dict[Shapes, Tensor] = {}  # of each shape seen: where its messages lie
        self.graphs: dict[Shapes, torch.cuda.CUDAGraph] = {}
        self.kept: list[object] = []

    def __call__(self, work: Work, told: Tensor, shapes: Shapes) -> None:
        known = shapes in self.inputs
        if known:
            self.inputs[shapes].copy_(told, non_blocking=True)
        else:
            self.inputs[shapes] = told.to(self.device)
        if known and self.recording and shapes not in self.graphs:
            self._record(work, shapes)
        if shapes in self.graphs:
            self.graphs[shapes].replay()
        else:
            work(self.inputs[shapes], shapes)

    def _record(self, work: Work, shapes: Shapes) -> None:
        if len(self.graphs) == MOST_GRAPHS:
            self.recording = False
            self.notices.append(f"batches have more than {MOST_GRAPHS} shapes: the rest is not recorded")
            return
        try:
            self.graphs[shapes] = record(lambda: work(self.inputs[shapes], shapes), self.pool)
            self.kept.append([rule.remembered() for rule in self._rules()])
        except RuntimeError as error:
            self._give_up()
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the step cannot be recorded as a CUDA graph and runs as it is ({reason})")

    def _give_up(self) -> None:
        """From here on every step runs as it is. What was made while recording has no numbers in it."""
        self.recording = False
        self.model.zero_grad(set_to_none=True)
        for rule in self._rules():
            rule.forget()
        self.graphs.clear()  # they draw dropout from a state that is gone, and hold memory that steps may need
        self.kept.clear()
        torch.cuda.empty_cache()

    def _rules(self) -> list[Rule]:
        """The model's rules, which remember masks: a graph that read one will read it again."""
        return [rule for module in self.model.modules() for rule in getattr(module, "reaches", ())]


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
