"""The content of a checkpoint: everything that a resumed run needs to end with the bits of an uninterrupted one.

Tensors: weights, optimizer state, moving average of the weights, and random states.
JSON: progress, data position, schedule, states of the callbacks, and losses that have not been logged yet.
`RunFolder` writes both to disk.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from triform.evaluation.metrics import Metrics
from triform.training.checkpoint_schema import validate_optimizer_state
from triform.training.rng import get_rng_state, set_rng_state
from triform.training.tensors import is_finite, load_weights, local_part, named_weights

if TYPE_CHECKING:
    from triform.training.train_step import TrainStep
    from triform.training.trainer import Trainer


@dataclass
class Progress:
    """The progress of a run, which every checkpoint stores."""

    step: int = 0
    best: Metrics | None = None  # metrics of the best validation
    best_step: int = 0
    stale: int = 0  # validations since the last one that showed progress
    lowest_loss: float = sys.float_info.max  # of all validations; not infinity, which JSON does not have
    seconds: float = 0.0
    finished: str = ""  # why training ended, "max_steps" or "patience"; empty during training
    validation_due: bool = False  # whether this step's validation was interrupted; a resume repeats it first
    compiled: bool = False  # whether the last step used compiled blocks; a resume continues with them


UNLOGGED_LOSSES = "losses"  # read from the device with the other tensors, and then stored in state.json


class CheckpointTensors:
    """The tensors of a checkpoint by name, such as `model.head.weight` or `optimizer.3.exp_avg`.

    Training waits while they are collected, so the names are made only when the optimizer has other tensors than
    before, which is at the first checkpoint.
    """

    def __init__(self, train_step: TrainStep) -> None:
        self.train_step = train_step
        self._optimizer_values: list[Any] = []
        self._named: dict[str, Tensor] = {}

    def collect(self) -> dict[str, Tensor]:
        """Return the tensors, among them the losses since the last log, under `UNLOGGED_LOSSES`.

        Of a weight that is sharded, it is the part of this process.
        """
        values = [value for state in self.train_step.optimizer.state.values() for value in state.values()]
        if (
            not self._named
            or len(values) != len(self._optimizer_values)
            or not all(map(operator.is_, values, self._optimizer_values))
        ):
            self._optimizer_values, self._named = values, self._name_tensors()
        random_states = get_rng_state(self.train_step.device)
        return {
            UNLOGGED_LOSSES: self.train_step.losses,
            **self._named,
            **{f"rng.{name}": tensor for name, tensor in random_states.items()},
        }

    def _name_tensors(self) -> dict[str, Tensor]:
        step, weights = self.train_step, named_weights(self.train_step.task.model)
        tensors = {f"model.{name}": local_part(weight.detach()) for name, weight in weights.items()}
        if not step.is_sharded:  # then the memory of a parameter may be replaced
            tensors = {f"model.{name}": weight for name, weight in weights.items()}
        for index, parameter in enumerate(p for group in step.optimizer.param_groups for p in group["params"]):
            values = step.optimizer.state.get(parameter, {}).items()
            tensors |= {f"optimizer.{index}.{key}": value for key, value in values if torch.is_tensor(value)}
        return tensors | {f"ema.{index}": tensor for index, tensor in enumerate(step.ema)}


def checkpoint_state(trainer: Trainer) -> dict[str, Any]:
    """Return a copy of the content of a checkpoint's state.json, except for the unlogged losses.

    `checkpoint_schema` validates it on reading.
    """
    step = trainer.train_step
    compiled = step.was_compiled if step.use_compile is None else step.use_compile
    state = {
        "progress": {**vars(trainer.progress), "compiled": compiled},
        "sampler": trainer.sampler.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        "callbacks": {type(callback).__name__: callback.state_dict() for callback in trainer.callbacks},
        "metadata": trainer.metadata,
        "finished": trainer.progress.finished,
    }
    return deepcopy(state)


def find_non_finite(tensors: Mapping[str, Tensor], unlogged_losses: list[float]) -> str:
    """Return what is not finite in a checkpoint, "loss" or "model"; empty if all is finite."""
    if not math.isfinite(sum(unlogged_losses)):
        return "loss"
    weights = [tensor for name, tensor in tensors.items() if name.startswith("model.") and tensor.numel()]
    norms = torch._foreach_norm(weights)  # one call, which does not keep other threads waiting
    all_finite = math.isfinite(sum(map(float, norms))) or all(map(is_finite, weights))  # a square may overflow
    return "" if all_finite else "model"


def restore_checkpoint(trainer: Trainer, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Restore the state of a trainer from a checkpoint.

    Raises:
        LookupError, TypeError, ValueError, RuntimeError, OverflowError: The checkpoint does not match the trainer.
    """
    task, train_step = trainer.task, trainer.train_step
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "ema": {}, "rng": {}}
    for name, tensor in tensors.items():
        part, _, suffix = name.partition(".")
        if part not in parts:
            raise ValueError(f"unknown tensor {name}")
        parts[part][suffix] = tensor
    load_weights(train_step.task.model, parts["model"], trainer.folder.checkpoints_folder)
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in parts["optimizer"].items():
        index, _, key = name.partition(".")
        optimizer_state.setdefault(int(index), {})[key] = tensor
    validate_optimizer_state(optimizer_state, train_step.optimizer_parameters)
    local_state = {
        number: {key: local_part(tensor) for key, tensor in values.items()}
        for number, values in optimizer_state.items()
    }
    train_step.optimizer.load_state_dict(train_step.optimizer.state_dict() | {"state": local_state})
    for number, average in enumerate(train_step.ema):
        average.copy_(local_part(parts["ema"][str(number)]))
    trainer.progress = Progress(**state["progress"])
    train_step.was_compiled = trainer.progress.compiled
    if trainer.progress.best is not None and task.metric not in trainer.progress.best:
        raise ValueError(f"progress.best has no {task.metric}")
    trainer.sampler.load_state_dict(state["sampler"])
    trainer.schedule.load_state_dict(state["schedule"])
    for callback in trainer.callbacks:
        callback.load_state_dict(state["callbacks"].get(type(callback).__name__, {}))
    losses = state["window"]["losses"]
    trainer.steps_since_log = len(losses)
    train_step.restore_losses(losses)
    set_rng_state(parts["rng"], task.device)
