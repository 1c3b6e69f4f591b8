"""Optimizers and learning-rate schedules, chosen by name."""

from __future__ import annotations

import math

import torch
from torch import nn

from triform.config import TrainConfig
from triform.training.layers import depths

State = dict[str, float]


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, object]]:
    """Matrices decay; biases and norms do not. What is frozen has no place here, and so no state.

    With `layer_decay` a group has a depth too, and its `scale` is what its rate is multiplied by.
    """
    depth = depths(model) if layer_decay < 1 else {name: 0 for name, _ in model.named_parameters()}
    highest = max(depth.values())
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for layer in range(highest, -1, -1):
        groups |= {(layer, is_matrix): [] for is_matrix in (True, False)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[depth[name], parameter.ndim >= 2].append(parameter)
    return [
        {"params": found, "weight_decay": weight_decay * is_matrix, "scale": layer_decay ** (highest - layer)}
        for (layer, is_matrix), found in groups.items()
        if found
    ]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    groups = parameter_groups(model, config.weight_decay, config.layer_decay)
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    beta1, beta2 = config.betas
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    recordable = next(model.parameters()).is_cuda  # a step may be recorded as a CUDA graph
    return kind(groups, lr=config.lr, betas=(beta1, beta2), fused=fused, capturable=recordable)


class Schedule:
    """The learning rate as a share of `train.lr`: a shape over the steps, after a linear warm-up. Abstract."""

    def __init__(self, config: TrainConfig, max_steps: int) -> None:
        self.config, self.max_steps = config, max_steps
        self.warmup = max(0, config.warmup_steps)

    def share(self, step: int) -> float:
        """For the step numbered from 1."""
        return min(1.0, step / self.warmup if self.warmup else 1.0) * self.shape(step)

    def shape(self, step: int) -> float:
        """What is left of the rate once the warm-up is over."""
        raise NotImplementedError

    def progress(self, step: int) -> float:
        """0 at the end of the warm-up, 1 at the last step."""
        return min(1.0, max(0.0, (step - self.warmup) / max(1, self.max_steps - self.warmup)))

    def observe(self, loss: float) -> None:
        """Hear of a validation loss."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Take back what `state` gave."""


class Constant(Schedule):
    def shape(self, step: int) -> float:
        return 1.0


class Cosine(Schedule):
    def shape(self, step: int) -> float:
        low = self.config.final_lr_ratio
        return low + (1 - low) * (1 + math.cos(math.pi * self.progress(step))) / 2


class Linear(Schedule):
    def shape(self, step: int) -> float:
        return 1 - (1 - self.config.final_lr_ratio) * self.progress(step)


class Noam(Schedule):
    """Inverse square root of the step, 1 at the end of the warm-up."""

    def shape(self, step: int) -> float:
        return math.sqrt(max(1, self.warmup) / max(step, self.warmup, 1))


class Plateau(Schedule):
    """Multiplies by `plateau_factor` after more than `plateau_patience` validations without a lower loss."""

    THRESHOLD = 1e-4  # relative: a smaller gain is none

    def __init__(self, config: TrainConfig, max_steps: int) -> None:
        super().__init__(config, max_steps)
        self.factor, self.best, self.bad = 1.0, math.inf, 0.0

    def shape(self, step: int) -> float:
        return self.factor

    def observe(self, loss: float) -> None:
        if loss < self.best * (1 - self.THRESHOLD):
            self.best, self.bad = loss, 0
            return
        self.bad += 1
        if self.bad > self.config.plateau_patience:
            self.factor, self.bad = self.factor * self.config.plateau_factor, 0

    def state(self) -> State:
        best = {} if math.isinf(self.best) else {"best": self.best}
        return {"factor": self.factor, "bad": self.bad, **best}

    def restore(self, state: State) -> None:
        self.factor, self.bad, self.best = state["factor"], state["bad"], state.get("best", math.inf)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "noam": Noam,
    "plateau": Plateau,
}


def make_schedule(config: TrainConfig, max_steps: int) -> Schedule:
    return SCHEDULES[config.schedule](config, max_steps)
