"""The optimizers for many models at once: everything is a matrix with a row a model, each with its own rate.

They do what torch's optimizers of the same names do, and keep their state under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from triform.config import TrainConfig

ADAM_EPS = 1e-8  # torch's own, in Adam and AdamW


class BatchedOptimizer:
    """Moves weights (N, P) against gradients (N, P). Abstract: says in `move` how."""

    state_names: ClassVar[tuple[str, ...]] = ()  # for every weight; as torch calls it
    uses_step_count: ClassVar[bool] = False  # whether it must know how many steps were taken

    def __init__(self, configs: Sequence[TrainConfig], weights: Tensor, n_decaying: int) -> None:
        """Only the first `n_decaying` of a row's weights decay, and each row at its own pace."""
        self.config, self.n_decaying = configs[0], n_decaying
        weight_decays = [config.weight_decay for config in configs]
        self.weight_decays = weights.new_tensor(weight_decays)[:, None] if any(weight_decays) else None

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        """`rates` and `steps` (this one included) are (N, 1); the gradients may be overwritten."""
        raise NotImplementedError

    def decay_term(self, weights: Tensor) -> Tensor | None:
        """What decay would take from the weights at a rate of 1; None where nothing decays."""
        return None if self.weight_decays is None else weights[:, : self.n_decaying] * self.weight_decays


class BatchedSGD(BatchedOptimizer):
    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(lrs * grads)


class BatchedMomentumSGD(BatchedSGD):
    state_names = ("momentum_buffer",)

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(lrs * state["momentum_buffer"].mul_(self.config.momentum).add_(grads))


class BatchedAdam(BatchedOptimizer):
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
    """Decay does not pass through the moments."""

    def update(self, weights: Tensor, grads: Tensor, lrs: Tensor, state: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay_term(weights)) is not None:
            weights[:, : self.n_decaying].sub_(lrs * decay)
        self.adam_update(weights, grads, lrs, state, steps)


def _bias_correction(beta: float, steps: Tensor) -> Tensor:
    """1 - beta ** steps, exact also where that is small: the share of a mean that has been seen so far."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def build_batched_optimizer(configs: Sequence[TrainConfig], weights: Tensor, n_decaying: int) -> BatchedOptimizer:
    optimizer_classes: dict[str, type[BatchedOptimizer]] = {"adam": BatchedAdam, "adamw": BatchedAdamW}
    optimizer_classes["sgd"] = BatchedMomentumSGD if configs[0].momentum else BatchedSGD
    return optimizer_classes[configs[0].optimizer](configs, weights, n_decaying)


def clip_grad_norms(grads: Tensor, max_norms: Tensor) -> Tensor:  # (N, P), (N, 1) -> (N)
    """Scale each row down to its longest allowed; the lengths before, as `clip_grad_norm_` gives them."""
    norms = torch.linalg.vector_norm(grads, dim=1)
    grads.mul_((max_norms / (norms[:, None] + 1e-6)).clamp(max=1.0))
    return norms
