"""A step of learning as one CUDA graph: recorded once for each shape of batch, then replayed.

A small model spends its time on starting kernels; a replay starts all of them at once. The first batch of a shape
is learned from as usual, the second is recorded, and from then on the host sends row numbers and a rate and says
go. The rows are gathered by the device, dropout moves on with every replay, and what is computed is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triform.data.loader import Indices
from triform.nn.half import Halves
from triform.nn.masks import Rule
from triform.tasks.resident import Plan, Resident
from triform.tasks.task import Dataset, Task
from triform.training.compiled import compiled, pays
from triform.training.learner import Counts, Learner

MOST_GRAPHS = 64
Shapes = tuple[tuple[int, ...], ...]


class Recorded(Learner):
    def __init__(self, task: Task, data: Dataset, resident: Resident, max_steps: int) -> None:
        super().__init__(task, data)
        self.resident, self.max_steps = resident, max_steps
        self.compiling: bool | None = None  # decided at the first step
        self.halves = Halves(task.model) if self.number_format == "bf16" else None
        self.inputs: dict[Shapes, Tensor] = {}  # of each shape seen: rate, weight and rows
        self.graphs: dict[Shapes, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.kept: list[object] = []
        self.recording = True

    def step(self, drawn: Sequence[Indices], rate: float) -> Counts:
        plans = [self.resident.plan(indices) for indices in drawn]
        shapes = tuple(plan.shape for plan in plans)
        counts = Counts(*(sum(column) for column in list(zip(*plans, strict=True))[2:]))
        if self.compiling is None:
            self.compiling = pays(
                sum(p.numel() for p in self.task.model.parameters()), counts.n_places, self.max_steps
            )
        told = torch.from_numpy(message(plans, counts.weight, rate))
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
            self._follow(shapes)
        return counts

    def _follow(self, shapes: Shapes) -> None:
        """Gather the batches that the message names, and learn from them."""
        told = self.inputs[shapes]
        batches, start = [], 2
        for shape in shapes:
            rows = told[start : start + shape[0]].long()
            batches.append(self.resident.gather(rows, shape))
            start += shape[0]
        with self._faster():
            self.learn(batches, told[1].float(), told[0].float())

    def _faster(self) -> AbstractContextManager[Any]:
        """What makes the forward and backward pass faster here."""
        if self.compiling:
            return compiled(self.task.model)
        return nullcontext() if self.halves is None else self.halves.used()

    def _record(self, shapes: Shapes) -> None:
        if len(self.graphs) == MOST_GRAPHS:
            self.recording = False
            self.notices.append(f"batches have more than {MOST_GRAPHS} shapes: the rest is not recorded")
            return
        try:
            self.graphs[shapes] = record(lambda: self._follow(shapes), self.pool)
            self.kept.append(self._remembered())
        except RuntimeError as error:
            self.recording = False
            self.optimizer.zero_grad(set_to_none=True)
            self.notices.append(f"the step cannot be recorded as a CUDA graph and runs as it is ({_first(error)})")

    def _remembered(self) -> list[object]:
        """What the model remembers of masks: a graph that read it will read it again."""
        rules: Iterator[Rule] = (
            rule for module in self.task.model.modules() for rule in getattr(module, "reaches", ())
        )
        return [rule.remembered() for rule in rules]

    @contextmanager
    def running(self) -> Iterator[None]:
        """On a stream of its own, where graphs can be recorded."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream), super().running():
            yield
        torch.cuda.current_stream(self.device).wait_stream(stream)


def record(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Work on the current stream, recorded. Graphs that share a pool must never run at once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
        work()
    return graph


def message(plans: Sequence[Plan], weight: int, rate: float) -> npt.NDArray[np.float64]:
    """All that the device is told of a step, in one array: the rate, the weight, the rows."""
    return np.concatenate([[rate, weight], *(plan.rows for plan in plans)])


def _first(error: RuntimeError) -> str:
    return str(error).strip().split("\n")[0]
