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

EPS = 1e-8  # torch's own, in Adam and AdamW


class Rowwise:
    """Moves weights (N, P) against gradients (N, P). Abstract: says in `move` how."""

    keeps: ClassVar[tuple[str, ...]] = ()  # for every weight; as torch calls it
    counts: ClassVar[bool] = False  # whether it must know how many steps were taken

    def __init__(self, members: Sequence[TrainConfig], weights: Tensor, n_decaying: int) -> None:
        """Only the first `n_decaying` of a row's weights decay, and each row at its own pace."""
        self.config, self.n_decaying = members[0], n_decaying
        decays = [config.weight_decay for config in members]
        self.decays = weights.new_tensor(decays)[:, None] if any(decays) else None

    def move(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        """`rates` and `steps` (this one included) are (N, 1); the gradients may be overwritten."""
        raise NotImplementedError

    def decay(self, weights: Tensor) -> Tensor | None:
        """What decay would take from the weights at a rate of 1; None where nothing decays."""
        return None if self.decays is None else weights[:, : self.n_decaying] * self.decays


class Sgd(Rowwise):
    def move(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(rates * grads)


class Momentum(Sgd):
    keeps = ("momentum_buffer",)

    def move(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        weights.sub_(rates * kept["momentum_buffer"].mul_(self.config.momentum).add_(grads))


class Adam(Rowwise):
    keeps = ("exp_avg", "exp_avg_sq")
    counts = True

    def move(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay(weights)) is not None:
            grads[:, : self.n_decaying].add_(decay)
        self.step(weights, grads, rates, kept, steps)

    def step(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        beta1, beta2 = self.config.betas
        mean = kept["exp_avg"].lerp_(grads, 1 - beta1)
        square = kept["exp_avg_sq"].mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
        size = square.sqrt().mul_(_seen(beta2, steps).rsqrt()).add_(EPS)
        weights.sub_(size.reciprocal_().mul_(mean).mul_(rates / _seen(beta1, steps)))


class AdamW(Adam):
    """Decay does not pass through the moments."""

    def move(self, weights: Tensor, grads: Tensor, rates: Tensor, kept: dict[str, Tensor], steps: Tensor) -> None:
        if (decay := self.decay(weights)) is not None:
            weights[:, : self.n_decaying].sub_(rates * decay)
        self.step(weights, grads, rates, kept, steps)


def _seen(beta: float, steps: Tensor) -> Tensor:
    """1 - beta ** steps, exact also where that is small: the share of a mean that has been seen so far."""
    return -torch.expm1(steps * math.log(beta)) if beta else torch.ones_like(steps)


def make_rowwise(members: Sequence[TrainConfig], weights: Tensor, n_decaying: int) -> Rowwise:
    kinds: dict[str, type[Rowwise]] = {"adam": Adam, "adamw": AdamW}
    kinds["sgd"] = Momentum if members[0].momentum else Sgd
    return kinds[members[0].optimizer](members, weights, n_decaying)


def clip(grads: Tensor, most: Tensor) -> Tensor:  # (N, P), (N, 1) -> (N)
    """Scale each row down to its longest allowed; the lengths before, as `clip_grad_norm_` gives them."""
    norms = torch.linalg.vector_norm(grads, dim=1)
    grads.mul_((most / (norms[:, None] + 1e-6)).clamp(max=1.0))
    return norms
