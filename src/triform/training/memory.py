"""Adapt training to the memory: find the batch that fits, and split steps into smaller batches."""

from __future__ import annotations

from dataclasses import replace

import torch

from triform.analysis.capacity import build_workload, find_max_batch_size, split_batch
from triform.analysis.device_memory import DeviceMemory, Engine, choose_engine, estimate_device_memory
from triform.analysis.host_memory import GIB, available_memory
from triform.config import Config
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.tasks import Task
from triform.training.freezing import count_trainable
from triform.training.train_step import resolve_compute_dtype
from triform.world import current_world

AUTO_BATCH_HINT = "or let --set train.auto_batch=true find it"


def free_memory(device: torch.device) -> int:
    """Return the bytes of GPU memory that this process can still allocate, including its cached memory."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_training_memory(task: Task, device: torch.device) -> None:
    """Check that weights, gradients and the optimizer's state fit into memory.

    Raises:
        ConfigError: They do not.
    """
    if device.type not in ("cpu", "cuda"):
        return
    engine = choose_parallel(task, device)
    needed = estimate_process_memory(task, device, engine).state
    available = training_memory(task, device)
    if needed > available:
        part = " in each process" if engine == "fsdp" else ""
        raise ConfigError(
            f"training needs {needed / GIB:,.1f} GiB for weights, gradients and the state of "
            f"{task.config.train.optimizer}{part}, but {available / GIB:,.1f} GiB are free on {device}; lower "
            "model.d_model or model.n_layers, or train fewer weights (train.freeze_layers, train.lora_rank)"
        )


def choose_parallel(task: Task, device: torch.device) -> Engine:
    """Return how several processes train a model.

    With `train.parallel=auto`, each has a copy of the model if that fits into its memory, and otherwise a part.
    Muon needs whole matrices, so each process has a copy.
    """
    train = task.config.train
    if train.parallel != "auto":
        return train.parallel
    n_processes = current_world().size
    if n_processes == 1 or train.exact or train.optimizer == "muon" or device.type not in ("cpu", "cuda"):
        return "ddp"
    return choose_engine(estimate_process_memory(task, device, "ddp"), training_memory(task, device))


def estimate_process_memory(task: Task, device: torch.device, engine: Engine) -> DeviceMemory:
    """Return the memory of one process."""
    usage = build_workload(
        task.config, task.config.data.longest_training_example, bf16=False, gpu=device.type == "cuda"
    )
    usage = replace(usage, **count_trainable(task.model)._asdict())
    return estimate_device_memory(engine, task.config, task.sizes, usage, current_world().size)


def training_memory(task: Task, device: torch.device) -> int:
    """Return the bytes that training may use on a device, including those that the model already uses there."""
    model_bytes = sum(p.numel() * p.element_size() for p in task.model.parameters())
    if device.type == "cpu":
        return available_memory() + model_bytes
    return free_memory(device) + (model_bytes if task.device.type == "cuda" else 0)


def max_batch_that_fits(task: Task, device: torch.device, memory: int) -> int:
    """Return the number of texts of the maximum length that fit into this much memory at once."""
    bf16 = resolve_compute_dtype(task.config, device) == "bf16"
    usage = build_workload(
        task.config, task.config.data.longest_training_example, bf16=bf16, gpu=device.type != "cpu"
    )
    usage = replace(usage, **count_trainable(task.model)._asdict())
    return find_max_batch_size(task.config, task.sizes, usage, memory)


def fit_batch_to_memory(task: Task, device: torch.device) -> tuple[Config, list[str]]:
    """With `train.auto_batch` on a GPU, choose micro-batches that fit into its memory.

    Returns:
        The settings, with the same number of examples per step, and notices for the user.
    """
    if task.config.train.auto_batch and device.type == "cuda":
        max_batch = max_batch_that_fits(task, device, free_memory(device))
        if 0 < max_batch < micro_batch_size(task.config):
            config, notice = _limit_batch(task.config, max_batch)
            return config, [notice]
    return task.config, []


def halve_batch(config: Config) -> tuple[Config, str]:
    """Return settings with half the micro-batch and a notice, after running out of memory."""
    return _limit_batch(config, micro_batch_size(config) // 2)


def _limit_batch(config: Config, max_batch: int) -> tuple[Config, str]:
    settings = split_batch(config, max_batch)
    changes = ", ".join(f"{name}={value}" for name, value in settings.items())
    return build_config(dict(settings), config), f"changed to fit the memory of the device: {changes}"


def micro_batch_size(config: Config) -> int:
    """Return the number of texts of the maximum length in a micro-batch."""
    train = config.train
    return train.batch_size or max(1, train.batch_tokens // config.data.longest_training_example)


def out_of_memory_error(task: Task, device: torch.device, memory: int) -> ConfigError:
    """Return the error for running out of memory, with settings that would fit."""
    train = task.config.train
    name = "batch_size" if train.batch_size else "batch_tokens"
    problem = f"out of memory on {device} with train.{name}={getattr(train, name)}"
    max_batch = min(max_batch_that_fits(task, device, memory), micro_batch_size(task.config) - 1)
    if max_batch < 1:
        return ConfigError(
            f"{problem}: even one text of data.max_len={task.config.data.max_len} tokens does not fit into "
            f"{memory / GIB:.1f} GiB; make the model or data.max_len smaller"
        )
    suggestion = ", ".join(f"{name}={value}" for name, value in split_batch(task.config, max_batch).items())
    return ConfigError(
        f"{problem}: about {max_batch} texts at once fit into {memory / GIB:.1f} GiB; "
        f"set {suggestion}, {AUTO_BATCH_HINT}"
    )
