"""A step of learning as one CUDA graph: recorded once for each shape of batch, then replayed.

A small model spends its time on starting kernels; a replay starts all of them at once. The host sends row numbers
and a rate and says go. The rows are gathered by the device, dropout moves on with every replay, and what is
computed is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triform.data.loader import Indices
from triform.nn.half import Halves
from triform.tasks.resident import Resident
from triform.tasks.task import Dataset, Task
from triform.training.compiled import compiled, pays
from triform.training.learner import Counts, Learner, counted
from triform.training.replay import Replay, Shapes, own_stream


class Recorded(Learner):
    def __init__(self, task: Task, data: Dataset, resident: Resident, max_steps: int) -> None:
        super().__init__(task, data)
        self.resident, self.max_steps = resident, max_steps
        self.compiling: bool | None = None  # decided at the first step, which shows whether it can be done
        self.compiled_once = False
        self.halves = Halves(task.model) if self.number_format == "bf16" else None
        self.replay = Replay(task.model, self.device, self.notices)

    def step(self, drawn: Sequence[Indices], rate: float) -> Counts:
        plans = [self.resident.plan(indices) for indices in drawn]
        counts = counted(plans)
        if self.compiling is None:
            n_parameters = sum(p.numel() for p in self.task.model.parameters())
            self.compiling = pays(n_parameters, counts.n_places, self.max_steps)
        told = np.concatenate([[rate, counts.weight], *(plan.rows for plan in plans)])
        self.replay(self._follow, torch.from_numpy(told), tuple(plan.shape for plan in plans))
        return counts

    def _follow(self, told: Tensor, shapes: Shapes) -> None:
        """Gather the batches that the message names, and learn from them."""
        batches, start = [], 2
        for shape in shapes:
            rows = told[start : start + shape[0]].long()
            batches.append(self.resident.gather(rows, shape))
            start += shape[0]
        try:
            with self._faster():
                self.learn(batches, told[1].float(), told[0].float())
        except RuntimeError as error:
            if not self.compiling or self.compiled_once or isinstance(error, torch.OutOfMemoryError):
                raise
            self.compiling = False
            self.task.model.zero_grad(set_to_none=True)
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the blocks cannot be compiled here and run as they are ({reason})")
            self._follow(told, shapes)
        self.compiled_once = True

    def _faster(self) -> AbstractContextManager[Any]:
        """What makes the forward and backward pass faster here."""
        if self.compiling:
            return compiled(self.task.model)
        return nullcontext() if self.halves is None else self.halves.used()

    @contextmanager
    def running(self) -> Iterator[None]:
        """On a stream of its own, where graphs can be recorded."""
        with own_stream(self.device), super().running():
            yield
