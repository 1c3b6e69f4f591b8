"""Muon: momentum with orthogonalised updates, for the weight matrices of blocks. All other weights use AdamW.

Jordan et al. (2024), https://kellerjordan.github.io/posts/muon/. The size of an update is that of AdamW, as in
Liu et al. (2025), https://arxiv.org/abs/2502.16982, so both optimizers have similar learning rates.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95  # of Nesterov's kind
N_ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial that brings singular values close to 1
EPS = 1e-7
RMS_OF_ADAMW = 0.2  # the usual root mean square of an update of AdamW at a learning rate of 1


class Muon(torch.optim.AdamW):
    """AdamW whose parameter groups with `orthogonal=True` are updated by Muon.

    Unlike `torch.optim.Muon`, matrices of one shape are orthogonalised together, in fp32 on a CPU and in bf16 on a
    GPU, and the step can be captured as a CUDA graph.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["orthogonal"]:
                self._update_matrices(group)
        super().step()

    def _update_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape.setdefault(parameter.shape, []).append(parameter)
        for parameters in by_shape.values():
            states = [self.state[parameter] for parameter in parameters]
            for parameter, state in zip(parameters, states, strict=True):
                if not state:
                    state["step"] = parameter.new_zeros(
                        (), dtype=torch.float32
                    )  # AdamW expects it when it is loaded
                    state["exp_avg"] = torch.zeros_like(parameter)
            grads = torch.stack([p.grad for p in parameters if p.grad is not None])
            momentum = torch.stack([state["exp_avg"] for state in states])
            update = muon_update(grads, momentum)
            torch._foreach_copy_([state["exp_avg"] for state in states], list(momentum))
            torch._foreach_add_([state["step"] for state in states], 1)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_sub_(parameters, list(update * group["lr"]))
            for parameter in parameters:
                parameter.grad = None  # so that AdamW skips it


def muon_update(grads: Tensor, momentum: Tensor) -> Tensor:
    """Update the moving average of the gradients, and return the change of the weights at a learning rate of 1.

    Args:
        grads: The gradients of matrices of one shape, (..., rows, columns).
        momentum: The moving average, which is changed in place.
    """
    momentum.lerp_(grads, 1 - MOMENTUM)
    scale = RMS_OF_ADAMW * math.sqrt(max(grads.shape[-2:]))
    return orthogonalize(grads.lerp(momentum, MOMENTUM)).mul_(scale)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors, whose singular values are close to 1 (0.7 to 1.2).

    This takes five Newton-Schulz iterations, which are faster than a singular value decomposition.

    Args:
        matrices: (..., rows, columns).
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    has_more_rows = x.shape[-2] > x.shape[-1]
    x = x.mT if has_more_rows else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)
    a, b, c = COEFFICIENTS
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if has_more_rows else x).to(matrices.dtype)


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the weights that Muon updates: those of the linear layers in blocks."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if ".blocks." in f".{name}" and isinstance(module, nn.Linear)
    }
