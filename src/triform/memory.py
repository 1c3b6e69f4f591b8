"""When memory is short: which batch would fit, and steps made of smaller batches."""

from __future__ import annotations

from dataclasses import replace

import torch

from triform.config import Config
from triform.errors import ConfigError
from triform.explain.capacity import fitting_batch, smaller_batches, use_of
from triform.explain.costs import costs
from triform.models.host_memory import GIB, available_memory
from triform.settings import build
from triform.tasks import Prepared, Task
from triform.training.layers import learning
from triform.training.learner import number_format

OFFER = "or let --set train.auto_batch=true find it"


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still take, with those it holds for later."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_training_memory(task: Task, device: torch.device) -> None:
    """Refuse to train where weights, gradients and the optimizer's state alone do not fit."""
    if device.type not in ("cpu", "cuda"):
        return
    use = use_of(task.config, task.config.data.max_len, half=False, gpu=device.type == "cuda")
    use = replace(use, **learning(task.model)._asdict())
    needed = sum(item.total for item in costs(task.config, task.sizes, use).training)
    held = sum(p.numel() * p.element_size() for p in task.model.parameters())  # by the model, on the host
    have = free_memory(device) if device.type == "cuda" else available_memory() + held
    if needed > have:
        raise ConfigError(
            f"training needs {needed / GIB:,.1f} GiB for weights, gradients and the state of "
            f"{task.config.train.optimizer}; {have / GIB:,.1f} GiB are free on {device}: lower model.d_model or "
            "model.n_layers, or train fewer weights (train.freeze, train.lora_rank)"
        )


def fitting(task: Task, device: torch.device, memory: int) -> int:
    """The most texts at once that fit there, as long as the model reads them."""
    half = number_format(task.config, device) == "bf16"
    use = use_of(task.config, task.config.data.max_len, half=half, gpu=device.type != "cpu")
    use = replace(use, **learning(task.model)._asdict())
    return fitting_batch(task.config, task.sizes, use, memory)


def divide(prepared: Prepared, device: torch.device) -> Prepared:
    """With `train.auto_batch`, batches that fit the device and a step that still learns from as much."""
    task = prepared.task
    if not task.config.train.auto_batch or device.type != "cuda":
        return prepared
    most = fitting(task, device, free_memory(device))
    return _divided(prepared, most) if 0 < most < texts_at_once(task.config) else prepared


def _divided(prepared: Prepared, most: int) -> Prepared:
    prepared.task.config, told = _cut(prepared.task.config, most)
    return replace(prepared, notices=(*prepared.notices, told))


def halved(config: Config) -> tuple[Config, str]:
    """For another try, after memory ran out all the same; and what the user is told of it."""
    return _cut(config, texts_at_once(config) // 2)


def _cut(config: Config, most: int) -> tuple[Config, str]:
    settings = smaller_batches(config, most)
    told = ", ".join(f"{name}={value}" for name, value in settings.items())
    return build(dict(settings), config), f"to fit the memory of the device: {told}"


def texts_at_once(config: Config) -> int:
    train = config.train
    return train.batch_size or max(1, train.batch_tokens // config.data.max_len)


def out_of_memory(task: Task, device: torch.device, memory: int) -> ConfigError:
    """What to tell who asked for too much."""
    train = task.config.train
    name = "batch_size" if train.batch_size else "batch_tokens"
    begin = f"out of memory on {device} with train.{name}={getattr(train, name)}"
    most = min(fitting(task, device, memory), texts_at_once(task.config) - 1)
    if most < 1:
        return ConfigError(
            f"{begin}: even one text of data.max_len={task.config.data.max_len} tokens does not fit into "
            f"{memory / GIB:.1f} GiB; make the model or data.max_len smaller"
        )
    fits = ", ".join(f"{name}={value}" for name, value in smaller_batches(task.config, most).items())
    return ConfigError(f"{begin}: about {most} texts at once fit into {memory / GIB:.1f} GiB; set {fits}, {OFFER}")
