"""Optimizers for many models at once: the weights, and the optimizer state, are matrices with one row per model.

Each row has its own learning rate and weight decay. The updates and the names of the state are those of the torch
optimizers with the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from triform.config import TrainConfig
from triform.training.muon import muon_update

ADAM_EPS = 1e-8  # the default of torch


class BatchedOptimizer:
    """Base class of optimizers of weights (N, P) with gradients (N, P). Subclasses implement `update`.

    Args:
        configs: The training settings of each model. They may differ in learning rate and weight decay.
        weights: The weights of all models.
        n_decaying: The number of weights per row that have weight decay. They come first in the row.
        orthogonal_shapes: The shapes of the matrices that Muon updates. They are the first parameters of a row.
    """

    state_names: ClassVar[
        tuple[str, ...]
    ] = ()  # the names of the state tensors, which have the shape of the weights
    uses_step_count: ClassVar[bool] = False  # whether `update` depends on the number of steps

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        weights: Tensor,
        n_decaying: int,
        orthogonal_shapes: Sequence[torch.Size] = (),
    ) -> None:
        self.config, self.n_decaying, self.orthogonal_shapes = configs[0], n_decaying, orthogonal_shapes
        weight_decays = [config.weight_decay for config in configs]
        self.weight_decays = weights.new_tensor(weight_decays)[:, None] if any(weight_decays) else None

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        """Update the weights and the state in place.

        Args:
            weights: (N, P).
            grads: (N, P); may be overwritten.
            lrs: The learning rates, (N, 1).
            state: A tensor (N, P) for each of `state_names`.
            steps: The number of steps including this one, (N, 1).
        """
        raise NotImplementedError

    def state_names_of(self, index: int) -> tuple[str, ...]:
        """Return the names of the state tensors of a parameter."""
        return self.state_names

    def decay_term(self, weights: Tensor) -> Tensor | None:
        """Return the weight decay at a learning rate of 1, or None without weight decay."""
        return None if self.weight_decays is None else weights[:, : self.n_decaying] * self.weight_decays


class BatchedSGD(BatchedOptimizer):
    """`torch.optim.SGD` without momentum."""

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(lrs * grads)


class BatchedMomentumSGD(BatchedSGD):
    """`torch.optim.SGD` with momentum."""

    state_names = ("momentum_buffer",)

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(lrs * state["momentum_buffer"].mul_(self.config.momentum).add_(grads))


class BatchedAdam(BatchedOptimizer):
    """`torch.optim.Adam`: weight decay is added to the gradient."""

    state_names = ("exp_avg", "exp_avg_sq")
    uses_step_count = True

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        self.adam_update(weights, grads, lrs, state, steps)

    def adam_update(
        self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor
    ) -> None:
        beta1, beta2 = self.config.betas
        mean = state["exp_avg"].lerp_(grads, 1 - beta1)
        mean_square = state["exp_avg_sq"].mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
        denominator = mean_square.sqrt().mul_(_bias_correction(beta2, steps).rsqrt()).add_(ADAM_EPS)
        weights.sub_(denominator.reciprocal_().mul_(mean).mul_(lrs / _bias_correction(beta1, steps)))


class BatchedAdamW(BatchedAdam):
    """`torch.optim.AdamW`: weight decay is applied to the weights directly."""

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            weights[:, : self.n_decaying].sub_(lrs * decay)
        self.adam_update(weights, grads, lrs, state, steps)


class BatchedMuon(BatchedAdamW):
    """`triform.training.muon.Muon`: AdamW, except for the matrices that come first in a row."""

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            weights[:, : self.n_decaying].sub_(lrs * decay)
        start = 0
        for shape in self.orthogonal_shapes:
            columns = slice(start, start + shape.numel())
            matrices, momentum = (x[:, columns].view(-1, *shape) for x in (grads, state["exp_avg"]))
            weights[:, columns].sub_(lrs * muon_update(matrices, momentum).flatten(1))
            start = columns.stop
        rest = {name: matrix[:, start:] for name, matrix in state.items()}
        self.adam_update(weights[:, start:], grads[:, start:], lrs, rest, steps)

    def state_names_of(self, index: int) -> tuple[str, ...]:
        return ("exp_avg",) if index < len(self.orthogonal_shapes) else self.state_names


def _bias_correction(beta: float, steps: Tensor) -> Tensor:
    """Return 1 - beta ** steps, also exact for small results."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def build_batched_optimizer(
    configs: Sequence[TrainConfig], weights: Tensor, n_decaying: int, orthogonal_shapes: Sequence[torch.Size] = ()
) -> BatchedOptimizer:
    """Return the optimizer of `train.optimizer`. See `BatchedOptimizer` for the arguments."""
    optimizer_classes: dict[str, type[BatchedOptimizer]] = {
        "adam": BatchedAdam,
        "adamw": BatchedAdamW,
        "muon": BatchedMuon,
        "sgd": BatchedMomentumSGD if configs[0].momentum else BatchedSGD,
    }
    return optimizer_classes[configs[0].optimizer](configs, weights, n_decaying, orthogonal_shapes)


def clip_grad_norms(grads: Tensor, max_norms: Tensor) -> Tensor:  # (N, P), (N, 1) -> (N)
    """Clip each row to its maximum norm, and return the norms before clipping as torch does."""
    norms = torch.linalg.vector_norm(grads, dim=1)
    grads.mul_((max_norms / (norms[:, None] + 1e-6)).clamp(max=1.0))
    return norms
