"""The steps of several processes that train one model, and the step whose result does not depend on their number.

All processes draw the same batches, and each computes a part of every micro-batch. Losses are sums, divided once by
the number of predictions of all processes, so the number of processes changes only the rounding.

`DistributedTrainStep` lets `DistributedDataParallel` add up the gradients. `ExactTrainStep` adds them up in a fixed
order, so that rounding does not depend on the number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from triform.config import TrainConfig
from triform.data.samplers import Indices
from triform.errors import ConfigError
from triform.nn.kernels.bf16_weights import Bf16Weights
from triform.nn.kernels.chunked_loss import can_compile
from triform.tasks.batch import Batch, Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Task
from triform.training.compilation import compiled_blocks, should_compile
from triform.training.train_step import StepStats, TrainStep, collect_step_stats
from triform.world import current_world

N_SHARDS = 8  # parts of a micro-batch with `train.exact`


class LossModule(nn.Module):
    """A model whose forward pass is the loss of its task, so that all calls of the model are synchronised."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model, self.task = task.model, task

    def forward(self, batch: Batch) -> Tensor:
        return self.task.loss(batch)


class PartitionedTrainStep(TrainStep):
    """Base class of steps in which each process computes its part of the micro-batches."""

    def __init__(self, task: Task, data: Dataset) -> None:
        super().__init__(task, data)
        self.world = current_world()

    def collate_part(self, indices: Indices, part: int, n_parts: int) -> Batch:
        """Return one part of a micro-batch. A part without examples is one example with counts of 0."""
        part_indices = np.array_split(indices, n_parts)[part]
        if len(part_indices):
            return self.collate(part_indices)
        return replace(self.collate(indices[:1]), n_predictions=0, n_tokens=0, n_positions=0)

    def collate(self, indices: Indices) -> Batch:
        """Return a batch of these examples on the device."""
        batch: Batch = self.data.batch(indices)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def seed_part(self, micro_batch: int, part: int) -> None:
        """Seed dropout for a part of a micro-batch, so that a resumed run needs no random state of each process."""
        sequence = np.random.SeedSequence([self.task.config.seed, self.n_steps, micro_batch, part])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def add_over_processes(self, stats: StepStats) -> StepStats:
        """Return the counts of all processes. With them, the processes agree whether to stop after this step."""
        if self.world.size == 1:
            return stats
        counts = torch.tensor([*stats, self.stop_requested], dtype=torch.int64)
        distributed.all_reduce(counts)
        *totals, n_stop_requests = counts.tolist()
        self.stop_requested = n_stop_requests > 0
        return StepStats(*totals)


class DataParallelTrainStep(PartitionedTrainStep):
    """Base class of steps in which `module`, a wrapped `LossModule`, adds up the gradients of the processes.

    On CUDA, long runs use compiled blocks, as `CudaGraphTrainStep` does.

    Args:
        task: The task, whose model is on its device.
        data: The training data.
        max_steps: The number of steps of the run. Only long runs use compiled blocks.
        device_dataset: The training data on the device, if it fits there; see `part_settings`.
    """

    module: nn.Module
    bf16_weights: Bf16Weights | None = None

    def __init__(
        self, task: Task, data: Dataset, max_steps: int, device_dataset: DeviceDataset | None = None
    ) -> None:
        super().__init__(task, data)
        self.max_steps, self.device_dataset = max_steps, device_dataset

    def gradient_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        """Return the context of a backward pass, after which gradients are added up if `enabled`."""
        raise NotImplementedError

    def step(self, batch_indices: Sequence[Indices], lr: float) -> StepStats:
        world = self.world
        batches = [self.collate_part(indices, world.rank, world.size) for indices in batch_indices]
        own_stats = collect_step_stats(batches)
        stats = self.add_over_processes(own_stats)
        self.set_lr(lr)
        total_loss = torch.zeros_like(self.grad_norm)
        with self._forward_context(own_stats.n_positions):
            for number, batch in enumerate(batches):
                # DDP and FSDP divide the sum of the gradients by the number of processes.
                weight = world.size / stats.n_predictions if batch.n_predictions else 0.0
                self.seed_part(number, world.rank)
                with self.gradient_sync(number == len(batches) - 1):
                    with self.autocast():
                        loss = self.module(batch) * weight
                    loss.backward()
                total_loss = total_loss + loss.detach()
        if world.size > 1:
            distributed.all_reduce(total_loss)
        self.apply_gradients(total_loss / world.size)
        return stats

    def collate(self, indices: Indices) -> Batch:
        """Return a batch of these examples, gathered on the device if the data is there."""
        if self.device_dataset is None:
            return super().collate(indices)
        plan = self.device_dataset.plan(indices)
        rows = torch.from_numpy(plan.rows).to(self.device, non_blocking=True)
        batch: Batch = self.device_dataset.gather(rows, plan.shape)
        return replace(
            batch, n_predictions=plan.n_predictions, n_tokens=plan.n_tokens, n_positions=plan.n_positions
        )

    @contextmanager
    def _forward_context(self, n_positions: int) -> Iterator[None]:
        """Use compiled blocks or bf16 copies of the weights inside the `with` block, if they save time."""
        if self.device.type != "cuda":
            yield
            return
        if self.use_compile is None:
            n_parameters = sum(p.numel() for p in self.task.model.parameters())
            self.use_compile = should_compile(n_parameters, n_positions, self.max_steps) and can_compile()
        if self.use_compile:
            from torch._dynamo import config as dynamo_config

            # Otherwise, torch.compile would split each block where a bucket of gradients ends.
            with dynamo_config.patch(optimize_ddp=False), compiled_blocks(self.task.model):
                yield
        elif self.bf16_weights is not None:
            with self.bf16_weights.swapped_in():
                yield
        else:
            yield


def part_settings(train: TrainConfig) -> TrainConfig:
    """Return the settings for the part of a batch that each process computes."""
    size = current_world().size
    return replace(train, batch_size=-(-train.batch_size // size), batch_tokens=-(-train.batch_tokens // size))


class DistributedTrainStep(DataParallelTrainStep):
    """A `TrainStep` of several processes, each of which has a copy of the model."""

    def __init__(
        self, task: Task, data: Dataset, max_steps: int, device_dataset: DeviceDataset | None = None
    ) -> None:
        super().__init__(task, data, max_steps, device_dataset)
        broadcast_weights(task.model)
        if self.device.type == "cuda" and self.compute_dtype == "bf16":
            self.bf16_weights = Bf16Weights(task.model)
        with warnings.catch_warnings():  # newer versions of PyTorch have another name for broadcast_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self.module: DistributedDataParallel = DistributedDataParallel(
                LossModule(task), broadcast_buffers=False, gradient_as_bucket_view=True, init_sync=False
            )

    def gradient_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        return nullcontext() if enabled else self.module.no_sync()


class ExactTrainStep(PartitionedTrainStep):
    """A `TrainStep` whose result has the same bits for 1, 2, 4 or 8 processes on CPUs.

    Each micro-batch has 8 parts, whose gradients are computed one after another. They are added up as a binary
    tree, in which the parts of a process are a subtree.
    """

    def __init__(self, task: Task, data: Dataset) -> None:
        super().__init__(task, data)
        require_exact_world_size(self.world.size)
        broadcast_weights(task.model)
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]

    def step(self, batch_indices: Sequence[Indices], lr: float) -> StepStats:
        n_parts = N_SHARDS // self.world.size
        parts = range(n_parts * self.world.rank, n_parts * (self.world.rank + 1))
        batches = [[self.collate_part(indices, part, N_SHARDS) for indices in batch_indices] for part in parts]
        stats = self.add_over_processes(collect_step_stats([batch for part in batches for batch in part]))
        self.set_lr(lr)
        total = sum_as_tree(
            [
                self._part_gradient(part, micro_batches, stats.n_predictions)
                for part, micro_batches in zip(parts, batches, strict=True)
            ]
        )
        if self.world.size > 1:
            sums = [torch.empty_like(total) for _ in range(self.world.size)]
            distributed.all_gather(sums, total)
            total = sum_as_tree(sums)
        *gradients, loss = total.split([*(p.numel() for p in self.parameters), 1])  # type: ignore[no-untyped-call]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        self.apply_gradients(loss[0])
        return stats

    def _part_gradient(self, part: int, batches: Sequence[Batch], n_predictions: int) -> Tensor:
        """Return the gradients of one part of all micro-batches and, as the last number, its loss."""
        total_loss = torch.zeros_like(self.grad_norm)
        for number, batch in enumerate(batches):
            if batch.n_predictions:
                self.seed_part(number, part)
                with self.autocast():
                    loss = self.task.loss(batch) / n_predictions
                loss.backward()  # type: ignore[no-untyped-call]
                total_loss = total_loss + loss.detach()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.optimizer.zero_grad(set_to_none=True)
        return torch.cat([*(gradient.flatten() for gradient in gradients), total_loss[None]])

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Use one thread on the CPU, because sums over several threads are rounded differently."""
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1 if self.device.type == "cpu" else n_threads)
        try:
            with super().training_context():
                yield
        finally:
            torch.set_num_threads(n_threads)


def require_exact_world_size(n_processes: int) -> None:
    """Raise `ConfigError` if `train.exact` cannot cut batches for so many processes."""
    if N_SHARDS % n_processes:
        raise ConfigError(
            f"train.exact cuts batches into {N_SHARDS} parts, so the number of processes must be 1, 2, 4 or "
            f"{N_SHARDS}, not {n_processes}"
        )


def sum_as_tree(tensors: list[Tensor]) -> Tensor:
    """Add up 1, 2, 4 or 8 tensors in pairs, then the pairs in pairs, and so on."""
    while len(tensors) > 1:
        tensors = [left + right for left, right in zip(tensors[::2], tensors[1::2], strict=True)]
    return tensors[0]


def broadcast_weights(model: nn.Module) -> None:
    """Give all processes the weights of the main process."""
    if current_world().size > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            distributed.broadcast(tensor.detach(), src=0)
