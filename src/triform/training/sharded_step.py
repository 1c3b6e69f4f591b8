"""The step of several processes, each of which has a part of the weights, gradients and optimizer state (FSDP2).

`trainer.task.model` stays the plain model, which validation and saving use. It has memory only while it is used:
`use_ema_weights` collects the weights of all processes into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from triform.tasks.batch import Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Task
from triform.training.distributed_step import DataParallelTrainStep, LossModule, broadcast_weights
from triform.training.tensors import named_weights
from triform.training.train_step import resolve_compute_dtype
from triform.world import current_world


class ShardedTrainStep(DataParallelTrainStep):
    """A `TrainStep` of several processes, each of which has a part of the model."""

    is_sharded = True

    def __init__(
        self, task: Task, data: Dataset, max_steps: int, device_dataset: DeviceDataset | None = None
    ) -> None:
        broadcast_weights(task.model)
        self.full_model = task.model
        sharded_task = copy(task)
        sharded_task.model = deepcopy(task.model)
        self.module = shard_model(sharded_task)
        super().__init__(sharded_task, data, max_steps, device_dataset)
        sharded_task.model.train()

    def gradient_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        return nullcontext()  # every micro-batch, because gradients of the whole model take too much memory

    def clip_gradients(self) -> Tensor:
        return full_tensor(super().clip_gradients())

    @contextmanager
    def use_ema_weights(self, step: int) -> Iterator[None]:
        """Collect the weights of all processes, or their moving average, in the plain model."""
        averages = (
            dict(zip(map(id, self._trainable_parameters()), self.ema, strict=True)) if step and self.ema else {}
        )
        bias_correction = 1.0 - self.config.ema_decay**step
        self._set_memory(has_memory=True)
        with torch.no_grad():
            for full, sharded in zip(self.full_model.parameters(), self.task.model.parameters(), strict=True):
                if (average := averages.get(id(sharded))) is None:
                    full.copy_(full_tensor(sharded))
                else:
                    full.copy_(full_tensor(average).div_(bias_correction))
        try:
            yield
        finally:
            self._set_memory(has_memory=False)

    def _trainable_parameters(self) -> list[Tensor]:
        return [p for p in self.task.model.parameters() if p.requires_grad]

    def _set_memory(self, *, has_memory: bool) -> None:
        """Give the plain model memory for its weights, or take it away. Its parameters keep their shapes."""
        if self.task.config.model.is_recurrent:  # cuDNN needs the weights of a layer in one piece of memory
            return
        for parameter in self.full_model.parameters():
            data = parameter.data
            parameter.data = data.new_empty(data.shape) if has_memory else data.new_empty(1).expand(data.shape)

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Free the memory of the plain model inside the `with` block."""
        self._set_memory(has_memory=False)
        try:
            with super().training_context():
                yield
        finally:
            self._set_memory(has_memory=True)

    def new_tensor(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return memory for a tensor of a checkpoint: for the part of this process, if it is sharded."""
        section, _, suffix = name.partition(".")
        parameters: dict[str, Tensor] = {}
        if section == "model":
            parameters = named_weights(self.task.model)
        elif section == "optimizer":
            groups = self.optimizer.param_groups
            parameters = {str(index): p for index, p in enumerate(p for group in groups for p in group["params"])}
        elif section == "ema":
            parameters = {str(index): p for index, p in enumerate(self.trainable_weights)}
        parameter = parameters.get(suffix.partition(".")[0] if section == "optimizer" else suffix)
        if parameter is None or parameter.shape != shape:  # not sharded, or refused later
            return torch.empty(shape, dtype=dtype)
        return torch.empty_like(parameter.detach(), dtype=dtype)


def shard_model(task: Task) -> nn.Module:
    """Shard each block, and then the rest of the model together.

    With bf16 on a GPU, the weights of the blocks are sent in bf16, which autocast would cast them to, and gradients
    are added up in fp32. The output of a recurrent layer is a view, which FSDP cannot hook into, so a recurrent
    model is sharded as one.
    """
    module = LossModule(task)
    mesh = init_device_mesh(task.device.type, (current_world().size,))
    is_bf16 = task.device.type == "cuda" and resolve_compute_dtype(task.config, task.device) == "bf16"
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        if is_bf16
        else MixedPrecisionPolicy()
    )
    if not task.config.model.is_recurrent:
        for parent in list(task.model.modules()):
            for block in getattr(parent, "blocks", ()):
                fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh)
    return module


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a `DTensor`, which all processes must ask for at the same time."""
    if not isinstance(tensor, DTensor):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full.detach()
