"""Choose the training step: of one process or of several, with or without CUDA graphs."""

from __future__ import annotations

import torch
from torch import distributed

from triform.config import TrainConfig
from triform.nn.kernels.cpu_linear import mkl_lacks_avx512, use_cpu_products
from triform.tasks.batch import Dataset
from triform.tasks.device_data import DeviceDataset
from triform.tasks.task import Task
from triform.training.cuda_graph_step import CudaGraphTrainStep
from triform.training.distributed_step import DistributedTrainStep, ExactTrainStep, part_settings
from triform.training.memory import choose_parallel
from triform.training.train_step import TrainStep
from triform.world import broadcast_value, current_world


def build_train_step(task: Task, data: Dataset, max_steps: int) -> TrainStep:
    """Return the step that the settings and the number of processes need.

    One process uses CUDA graphs if there is a GPU with enough memory for the training data. `train.parallel=ddp`
    or `fsdp` with one process of `torchrun` gives the step of several processes, so that its cost can be measured.
    """
    is_cuda = task.device.type == "cuda" and task.teacher is None  # a teacher runs eagerly
    if task.config.train.exact:
        return ExactTrainStep(task, data)
    if distributed.is_initialized() and (current_world().size > 1 or task.config.train.parallel != "auto"):
        device_dataset = load_device_dataset(task, data, part_settings(task.config.train)) if is_cuda else None
        if broadcast_value(choose_parallel(task, task.device)) == "ddp":
            return DistributedTrainStep(task, data, max_steps, device_dataset)
        from triform.training.sharded_step import ShardedTrainStep  # its imports take a second

        return ShardedTrainStep(task, data, max_steps, device_dataset)
    device_dataset = load_device_dataset(task, data) if is_cuda else None
    if device_dataset is None:
        if mkl_lacks_avx512():  # elsewhere, `F.linear` trains as fast
            use_cpu_products(task.model)
        return TrainStep(task, data)
    return CudaGraphTrainStep(task, data, device_dataset, max_steps)


def load_device_dataset(task: Task, data: Dataset, train: TrainConfig | None = None) -> DeviceDataset | None:
    """Return the data on the task's device, or None if there is too little memory for it.

    Args:
        task: The task.
        data: Its training data.
        train: The settings of the batches; by default, those of the task.
    """
    try:
        return data.to_device(task.device, train or task.config.train)
    except torch.OutOfMemoryError:
        return None
