"""The step of several processes, each of which has a part of the weights, gradients and optimizer state (FSDP2).

`trainer.task.model` stays the plain model, which validation and saving use. It has memory only while it is used:
`use_ema_weights` collects the weights of all processes into it.

Only the forward and backward pass use `DTensor`. Clipping, the optimizer and the moving average use the parts of
this process as plain tensors, which share the memory of the parameters, because each operation on a `DTensor` takes
much more time on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from triform.tasks.batch import Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Task
from triform.training.distributed_step import DataParallelTrainStep, LossModule, broadcast_weights
from triform.training.sharded_tensors import ShardSlice, find_shard_slices
from triform.training.tensors import local_part, named_weights
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
        self.sharded_weights = [p for p in sharded_task.model.parameters() if p.requires_grad]
        self._optimize_local_parts()
        self._parameters = {f"model.{name}": p for name, p in named_weights(sharded_task.model).items()}
        self._parameters |= {f"optimizer.{index}": p for index, p in enumerate(self.optimizer_parameters)}
        self._parameters |= {f"ema.{index}": p for index, p in enumerate(self.sharded_weights)}
        self._slices = find_shard_slices(self._parameters)

    def _optimize_local_parts(self) -> None:
        """Give the optimizer the parts of this process instead of the sharded parameters."""
        local_weights = dict(zip(self.sharded_weights, self.trainable_weights, strict=True))
        for group in self.optimizer.param_groups:
            group["params"] = [local_weights[parameter] for parameter in group["params"]]

    def gradient_sync(self, enabled: bool) -> AbstractContextManager[Any]:
        return nullcontext()  # every micro-batch, because gradients of the whole model take too much memory

    def apply_gradients(self, loss: Tensor) -> None:
        with torch.no_grad():
            for weight, parameter in zip(self.trainable_weights, self.sharded_weights, strict=True):
                weight.grad = None if parameter.grad is None else local_part(parameter.grad)
                parameter.grad = None
        super().apply_gradients(loss)

    def clip_gradients(self) -> Tensor:
        gradients = [weight.grad for weight in self.trainable_weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.world.size > 1:
            squares = norm.square()
            distributed.all_reduce(squares)
            norm = squares.sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.trainable_weights, self.config.clip_norm, norm)
        return norm

    @contextmanager
    def use_ema_weights(self, step: int) -> Iterator[None]:
        """Collect the weights of all processes, or their moving average, in the plain model."""
        averages = dict(zip(self.sharded_weights, self.ema, strict=True)) if step and self.ema else {}
        bias_correction = 1.0 - self.config.ema_decay**step
        self._set_memory(has_memory=True)
        with torch.no_grad():
            for full, sharded in zip(self.full_model.parameters(), self.task.model.parameters(), strict=True):
                if (average := averages.get(sharded)) is None:
                    full.copy_(full_tensor(sharded))
                else:
                    # Of one process, the whole tensor is the average itself, which must not change.
                    full.copy_(full_tensor(average, like=sharded)).div_(bias_correction)
        try:
            yield
        finally:
            self._set_memory(has_memory=False)

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

    @property
    def optimizer_parameters(self) -> list[Tensor]:
        sharded = dict(zip(self.trainable_weights, self.sharded_weights, strict=True))
        return [sharded[weight] for weight in super().optimizer_parameters]

    def new_tensor(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return memory for a tensor of a checkpoint: for the part of this process, if it is sharded."""
        parameter = self._parameters.get(_parameter_key(name))
        if parameter is None or parameter.shape != shape:  # not sharded, or refused later
            return torch.empty(shape, dtype=dtype)
        return torch.empty_like(parameter.detach(), dtype=dtype)

    def shard_slices(self, parts: Mapping[str, Tensor]) -> dict[str, ShardSlice]:
        """Return the slices of those tensors of a checkpoint that are sharded. Counters are not."""
        keys = {name: _parameter_key(name) for name, part in parts.items() if part.ndim}
        return {name: self._slices[key] for name, key in keys.items() if key in self._slices}


def _parameter_key(name: str) -> str:
    """Return the key of the parameter that a tensor of a checkpoint belongs to, such as `optimizer.3`."""
    return name.rpartition(".")[0] if name.startswith("optimizer.") else name


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


def full_tensor(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return the whole of a sharded tensor, which all processes must ask for at the same time.

    Args:
        tensor: A `DTensor`, or the part of this process. A tensor that is not sharded is returned.
        like: The `DTensor` that is sharded in the same way, if `tensor` is a part.
    """
    if isinstance(like, DTensor):
        tensor = DTensor.from_local(
            tensor, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
    if not isinstance(tensor, DTensor):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full.detach()
