"""An optimisation step as a CUDA graph, which is captured once for each batch shape and then replayed.

A small model spends most of its time on launching kernels; a replay launches all of them at once. For each step the
host sends only row indices and a learning rate. The device gathers the rows from its copy of the data, and dropout
differs with every replay. The result is the same as that of `TrainStep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triform.data.samplers import Indices
from triform.nn.kernels.bf16_weights import Bf16Weights
from triform.tasks.batch import Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Task
from triform.training.compilation import compiled_blocks, should_compile
from triform.training.compiler_cache import block_marker, is_compiled, record_compiled
from triform.training.graph_cache import GraphCache, Shapes, side_stream
from triform.training.train_step import StepStats, TrainStep, collect_step_stats


class CudaGraphTrainStep(TrainStep):
    """A `TrainStep` on a CUDA device that has a copy of the training data.

    Args:
        task: The task, whose model is on the device.
        data: The training data on the host.
        device_dataset: The same data on the device.
        max_steps: The number of steps of the run. Only long runs use compiled blocks.
    """

    def __init__(self, task: Task, data: Dataset, device_dataset: DeviceDataset, max_steps: int) -> None:
        super().__init__(task, data)
        self.device_dataset, self.max_steps = device_dataset, max_steps
        self.compile_succeeded = False
        self.marker = ""  # says in the cache that the blocks have been compiled for the batches of the first step
        self.bf16_weights = Bf16Weights(task.model) if self.compute_dtype == "bf16" else None
        self.graph_cache = GraphCache(task.model, self.device, self.notices)

    def step(self, batch_indices: Sequence[Indices], lr: float) -> StepStats:
        plans = [self.device_dataset.plan(indices) for indices in batch_indices]
        stats = collect_step_stats(plans)
        if self.use_compile is None:
            shapes = tuple(plan.shape for plan in plans)
            self.marker = block_marker(self.task.config.model, shapes, self.compute_dtype, self.device)
            n_parameters = sum(p.numel() for p in self.task.model.parameters())
            sizes = n_parameters, stats.n_positions, self.max_steps
            self.use_compile = self.was_compiled or should_compile(*sizes, self._is_cached)
        inputs = np.concatenate([[lr, stats.n_predictions], *(plan.rows for plan in plans)])
        self.graph_cache(self._run_step, torch.from_numpy(inputs), tuple(plan.shape for plan in plans))
        return stats

    @property
    def n_setups(self) -> int:
        return self.graph_cache.n_setups

    def _is_cached(self) -> bool:
        """Return whether compiled code is in the cache. A resumed run does not start to use it, see `Progress`."""
        return self.n_steps == 0 and is_compiled(self.marker)

    def _run_step(self, inputs: Tensor, shapes: Shapes) -> None:
        """Gather the batches of `inputs` (learning rate, predictions, rows) and optimize."""
        batches, start = [], 2
        for shape in shapes:
            row_indices = inputs[start : start + shape[0]].long()
            batches.append(self.device_dataset.gather(row_indices, shape))
            start += shape[0]
        try:
            with self._forward_context():
                self.optimize(batches, inputs[1].float(), inputs[0].float())
        except RuntimeError as error:
            if not self.use_compile or self.compile_succeeded or isinstance(error, torch.OutOfMemoryError):
                raise
            self.use_compile = False
            self.task.model.zero_grad(set_to_none=True)
            reason = str(error).strip().split("\n")[0]
            self.notices.append(f"the blocks cannot be compiled here, so they run without compilation ({reason})")
            self._run_step(inputs, shapes)
        if self.use_compile and not self.compile_succeeded and self.marker:
            record_compiled(self.marker)
        self.compile_succeeded = True

    def _forward_context(self) -> AbstractContextManager[Any]:
        """Return the context for forward and backward: compiled blocks, or bf16 copies of the weights."""
        if self.use_compile:
            return compiled_blocks(self.task.model)
        return nullcontext() if self.bf16_weights is None else self.bf16_weights.swapped_in()

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Use a separate stream, because graphs cannot be captured on the default stream."""
        with side_stream(self.device), super().training_context():
            yield
