"""Optimizers and learning-rate schedules, chosen by name."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import nn

from triform.config import TrainConfig
from triform.training.freezing import layer_depths
from triform.training.muon import Muon, hidden_matrices

ScheduleState = dict[str, float]


def build_parameter_groups(
    model: nn.Module, weight_decay: float, layer_decay: float = 1.0, orthogonal_names: Collection[str] = ()
) -> list[dict[str, object]]:
    """Group the trainable parameters: matrices have weight decay, biases and norms do not.

    Args:
        model: The model. Frozen parameters are skipped.
        weight_decay: The weight decay of matrices.
        layer_decay: If it is below 1, layers closer to the input get smaller learning rates. The `lr_scale` of a
            group is the factor of its learning rate.
        orthogonal_names: The matrices in groups with `orthogonal=True`; see `triform.training.muon`.
    """
    depth_by_name = layer_depths(model) if layer_decay < 1 else {name: 0 for name, _ in model.named_parameters()}
    max_depth = max(depth_by_name.values())
    groups: dict[tuple[int, bool, bool], list[nn.Parameter]] = {}
    for level in range(max_depth, -1, -1):
        groups |= {(level, *kind): [] for kind in ((True, True), (True, False), (False, False))}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[depth_by_name[name], parameter.ndim >= 2, name in orthogonal_names].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay * is_matrix,
            "lr_scale": layer_decay ** (max_depth - level),
            "orthogonal": is_orthogonal,
        }
        for (level, is_matrix, is_orthogonal), parameters in groups.items()
        if parameters
    ]


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer of `train.optimizer` for the trainable parameters of a model.

    >>> from torch import nn
    >>> type(build_optimizer(nn.Linear(3, 2), TrainConfig(optimizer="sgd", lr=0.1))).__name__
    'SGD'
    """
    orthogonal_names = hidden_matrices(model) if config.optimizer == "muon" else ()
    groups = build_parameter_groups(model, config.weight_decay, config.layer_decay, orthogonal_names)
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    beta1, beta2 = config.betas
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}[config.optimizer]
    capturable = next(model.parameters()).is_cuda  # the step may be captured as a CUDA graph
    return optimizer_class(groups, lr=config.lr, betas=(beta1, beta2), fused=fused, capturable=capturable)


class Schedule:
    """The learning rate over the steps, as a factor of `train.lr`: a linear warm-up, then a decay.

    Subclasses implement `decay_factor`.
    """

    def __init__(self, config: TrainConfig, max_steps: int) -> None:
        self.config, self.max_steps = config, max_steps
        self.warmup_steps = max(0, config.warmup_steps)

    def lr_factor(self, step: int) -> float:
        """Return the factor of `train.lr` at a step, counted from 1."""
        return min(1.0, step / self.warmup_steps if self.warmup_steps else 1.0) * self.decay_factor(step)

    def decay_factor(self, step: int) -> float:
        """Return the factor at a step without the warm-up."""
        raise NotImplementedError

    def decay_progress(self, step: int) -> float:
        """Return the progress of the decay: 0 at the end of the warm-up, 1 at the last step."""
        return min(1.0, max(0.0, (step - self.warmup_steps) / max(1, self.max_steps - self.warmup_steps)))

    def on_validation_loss(self, loss: float) -> None:
        """Receive the loss of each validation."""

    def state_dict(self) -> ScheduleState:
        """Return the state of the schedule for a checkpoint."""
        return {}

    def load_state_dict(self, state: ScheduleState) -> None:
        """Restore the state that `state_dict` returned."""


class ConstantSchedule(Schedule):
    """Schedule without decay."""

    def decay_factor(self, step: int) -> float:
        return 1.0


class CosineSchedule(Schedule):
    """Schedule that decays to `min_lr_ratio` along half a cosine."""

    def decay_factor(self, step: int) -> float:
        min_ratio = self.config.min_lr_ratio
        return min_ratio + (1 - min_ratio) * (1 + math.cos(math.pi * self.decay_progress(step))) / 2


class LinearSchedule(Schedule):
    """Schedule that decays linearly to `min_lr_ratio`."""

    def decay_factor(self, step: int) -> float:
        return 1 - (1 - self.config.min_lr_ratio) * self.decay_progress(step)


class NoamSchedule(Schedule):
    """Schedule with the inverse square root of the step, which is 1 at the end of the warm-up."""

    def decay_factor(self, step: int) -> float:
        return math.sqrt(max(1, self.warmup_steps) / max(step, self.warmup_steps, 1))


class PlateauSchedule(Schedule):
    """Schedule that multiplies by `plateau_factor` if the loss stops falling for `plateau_patience` validations."""

    THRESHOLD = 1e-4  # relative; a smaller decrease of the loss does not count

    def __init__(self, config: TrainConfig, max_steps: int) -> None:
        super().__init__(config, max_steps)
        self.factor, self.best, self.n_bad_validations = 1.0, math.inf, 0.0

    def decay_factor(self, step: int) -> float:
        return self.factor

    def on_validation_loss(self, loss: float) -> None:
        if loss < self.best * (1 - self.THRESHOLD):
            self.best, self.n_bad_validations = loss, 0
            return
        self.n_bad_validations += 1
        if self.n_bad_validations > self.config.plateau_patience:
            self.factor, self.n_bad_validations = self.factor * self.config.plateau_factor, 0

    def state_dict(self) -> ScheduleState:
        best = {} if math.isinf(self.best) else {"best": self.best}
        return {"factor": self.factor, "bad": self.n_bad_validations, **best}

    def load_state_dict(self, state: ScheduleState) -> None:
        self.factor, self.n_bad_validations, self.best = state["factor"], state["bad"], state.get("best", math.inf)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": ConstantSchedule,
    "cosine": CosineSchedule,
    "linear": LinearSchedule,
    "noam": NoamSchedule,
    "plateau": PlateauSchedule,
}


def build_schedule(config: TrainConfig, max_steps: int) -> Schedule:
    """Return the schedule of `train.schedule`.

    >>> schedule = build_schedule(TrainConfig(schedule="linear", warmup_steps=10, min_lr_ratio=0), max_steps=110)
    >>> [schedule.lr_factor(step) for step in (5, 10, 60, 110)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return SCHEDULES[config.schedule](config, max_steps)
