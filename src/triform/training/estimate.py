"""Estimate what a run costs before it is trained: parameters, memory, steps and time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from triform.analysis.capacity import build_workload
from triform.analysis.costs import estimate_costs
from triform.analysis.host_memory import available_memory
from triform.tasks.task import PreparedTask
from triform.training.epochs import steps_per_validation
from triform.training.freezing import count_trainable
from triform.training.length import count_steps, resolve_length
from triform.training.memory import free_memory, out_of_memory_error
from triform.training.run_folder import RunFolder
from triform.training.time_budget import estimate_seconds, measure_step_times
from triform.training.train_step import resolve_compute_dtype

TIMING_BUDGET = 30.0  # seconds; a small part of it is used to time steps and a validation


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """What a run costs.

    Attributes:
        parameters: The parameters of the model.
        trainable: Those of them that are trained.
        memory_bytes: Weights, gradients, optimizer state and activations of a batch of the longest texts.
        available_bytes: The free memory of the device.
        steps: The number of steps, unless training stops early.
        seconds: The time of these steps and their validations, from a few steps and a validation that were timed.
        device: The device.
        train_examples: The number of training examples.
        valid_examples: The number of validation examples.
        vocab_size: The size of the vocabulary.
        max_len: The number of tokens that the model reads.
        notices: What `train` would say about the data.
    """

    parameters: int
    trainable: int
    memory_bytes: int
    available_bytes: int
    steps: int
    seconds: float
    device: str
    train_examples: int
    valid_examples: int
    vocab_size: int
    max_len: int
    notices: tuple[str, ...]


def estimate_training(prepared: PreparedTask, folder: RunFolder) -> TrainingEstimate:
    """Estimate the costs of a prepared run. A few steps are timed and then undone.

    Args:
        prepared: The data and the model, which is already on its device.
        folder: A folder for temporary files.

    Raises:
        ConfigError: A step does not fit into the memory of the device.
    """
    prepared = prepared.with_config(resolve_length(prepared))
    task, config = prepared.task, prepared.task.config
    trainable = count_trainable(task.model)
    is_gpu = task.device.type == "cuda"
    available_bytes = free_memory(task.device) if is_gpu else available_memory()
    is_bf16 = resolve_compute_dtype(config, task.device) == "bf16"
    workload = build_workload(config, config.data.longest_training_example, bf16=is_bf16, gpu=is_gpu)
    costs = estimate_costs(config, task.sizes, replace(workload, **trainable._asdict()))
    try:
        setup_seconds, step_seconds, valid_seconds = measure_step_times(prepared, folder, TIMING_BUDGET)
    except torch.OutOfMemoryError:
        raise out_of_memory_error(task, task.device, available_bytes) from None
    steps = count_steps(config, prepared)
    batches_per_epoch = prepared.train.sampler(config.train, config.seed).steps_per_epoch
    eval_every = steps_per_validation(config.train, batches_per_epoch)
    return TrainingEstimate(
        parameters=sum(parameter.numel() for parameter in task.model.parameters()),
        trainable=trainable.trainable,
        memory_bytes=costs.training_bytes,
        available_bytes=available_bytes,
        steps=steps,
        seconds=setup_seconds + estimate_seconds(steps, max(1, eval_every), step_seconds, valid_seconds),
        device=str(task.device),
        train_examples=len(prepared.train),
        valid_examples=len(prepared.valid or ()),
        vocab_size=config.tokenizer.vocab_size,
        max_len=config.data.max_len,
        notices=prepared.notices,
    )
