"""The loss over a vocabulary. A large one is never scored for all rows at once.

Scores are B·T·V numbers, more than everything else that training holds. So on CUDA, where they would be many, some
rows are scored, judged and turned into gradients before the next ones: the backward pass then has nothing left to
compute, and no more than one part of the scores exists, in the number format of the products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import TrainConfig
from triform.errors import NonFiniteError
from triform.nn.half import product_kind, wide_product

IGNORE = -100  # a target that is not a prediction
MANY_SCORES = 1 << 27  # from here on they are made in parts,
MOST_SCORES = 1 << 29  # each of so many
LANES = 64  # a vocabulary is filled up to a multiple of this, which matrix units want


def check_finite(logits: Tensor) -> None:  # (..., V)
    """Refuse logits that give no probabilities: NaN or infinite ones."""
    if not logits.amax(dim=-1).isfinite().all():
        raise NonFiniteError


def cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # (..., V), (...) -> ()
    """Summed over targets that are predictions; in float32 at least."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return F.cross_entropy(
        wide.flatten(0, -2),
        targets.flatten(),
        ignore_index=IGNORE,
        label_smoothing=smoothing,
        reduction="sum",
    )


def vocabulary_loss(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    """Cross entropy of the head's scores (B, T, D), (B, T) -> (), summed; in parts where they are many."""
    many = targets.numel() * head.out_features > MANY_SCORES
    if not (many and states.is_cuda and torch.is_grad_enabled()):
        return cross_entropy(head(states), targets, smoothing)
    return in_parts(states, head, targets, smoothing)


def agreeing_loss(one: Tensor, two: Tensor, targets: Tensor, smoothing: float, weight: float) -> Tensor:
    """Of two readings (…, V) that dropout made differ: the mean loss, and how far apart they are, summed.

    That distance, the divergence each way, is R-Drop's (arXiv:2106.14448).
    """
    loss = (cross_entropy(one, targets, smoothing) + cross_entropy(two, targets, smoothing)) / 2
    p, q = (each.log_softmax(dim=-1, dtype=torch.promote_types(each.dtype, torch.float32)) for each in (one, two))
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)  # (…)
    return loss + weight / 4 * torch.where(targets == IGNORE, 0.0, apart).sum()


def learning_loss(states: Callable[[], Tensor], head: nn.Linear, targets: Tensor, how: TrainConfig) -> Tensor:
    """What a model of tokens learns by: the loss of the states it is asked for, or of two readings of them."""
    if how.consistency:
        return agreeing_loss(head(states()), head(states()), targets, how.label_smoothing, how.consistency)
    return vocabulary_loss(states(), head, targets, how.label_smoothing)


def in_parts(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float, most: int = MOST_SCORES) -> Tensor:
    """The same a few rows at a time, gradients included."""
    kind = product_kind(states)
    rows = max(LANES, most // head.out_features // LANES * LANES)
    with torch.autocast(states.device.type, enabled=False):
        loss: Tensor = _InParts.apply(
            states.flatten(0, -2), head.weight, head.bias, targets.flatten(), smoothing, kind, rows
        )  # type: ignore[no-untyped-call]
    return loss


class _InParts(torch.autograd.Function):
    """Computes the gradients while the scores are there; backward only multiplies by what comes in."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
        kind: torch.dtype, rows: int,
    ) -> Tensor:  # fmt: skip
        n, filling = len(weight), -len(weight) % LANES
        w = F.pad(weight.to(kind), (0, 0, 0, filling))  # (V', D)
        wide = torch.float64 if kind == torch.float64 else torch.float32
        b = None if bias is None else F.pad(bias.to(wide), (0, filling))
        loss = states.new_zeros((), dtype=wide)
        d_states, d_weight = [], None  # of what is frozen there is none
        d_bias = torch.zeros_like(b) if b is not None and ctx.needs_input_grad[2] else None
        judge = _compiled_judge() if states.is_cuda and _compiles() else judged
        parts = (each.split(rows) for each in (states.to(kind), targets))  # type: ignore[no-untyped-call]
        for x, wanted in zip(*parts, strict=True):
            part, d_scores = judge(x @ w.T, b, wanted, n, smoothing)
            loss += part
            d_states.append(d_scores @ w)
            if ctx.needs_input_grad[1]:
                d_part = wide_product(d_scores.T, x, wide)
                d_weight = d_part if d_weight is None else d_weight.add_(d_part)
            if d_bias is not None:
                d_bias += d_scores.sum(dim=0, dtype=wide)
        learned = (None if each is None else each[:n].to(weight.dtype) for each in (d_weight, d_bias))
        ctx.save_for_backward(torch.cat(d_states).to(states.dtype), *learned)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = (None if each is None else each * grads[0].to(each.dtype) for each in ctx.saved_tensors)
        return *found, None, None, None, None


def judged(
    scores: Tensor, bias: Tensor | None, targets: Tensor, n: int, smoothing: float
) -> tuple[Tensor, Tensor]:  # (R, V'), (V'), (R) -> (), (R, V')
    """The summed loss of some rows, and its gradient by their scores; columns from n on are filling."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if bias is not None:
        wide = wide + bias
    column = torch.arange(scores.shape[1], device=scores.device)
    inside = column < n
    counted = targets != IGNORE
    wanted = targets.clamp(min=0)[:, None]  # (R, 1)
    whole = torch.where(inside, wide, float("-inf")).logsumexp(dim=-1, keepdim=True)  # (R, 1)
    right = wide.gather(1, wanted)
    loss = whole - (1.0 - smoothing) * right
    if smoothing:
        loss = loss - torch.where(inside, wide, 0.0).sum(dim=-1, keepdim=True) * (smoothing / n)
    share = (column == wanted).to(wide.dtype) * (1.0 - smoothing) + smoothing / n
    gradient = torch.where(inside & counted[:, None], (wide - whole).exp() - share, 0.0)
    return torch.where(counted, loss[:, 0], 0.0).sum(), gradient.to(scores.dtype)


@cache
def _compiled_judge() -> Any:
    """Compiled, so that scores are read twice and written once, whatever the steps above."""
    return torch.compile(judged, dynamic=False)


@cache
def _compiles() -> bool:
    """Whether anything can be compiled for CUDA here: that takes a C compiler, which not every machine has."""
    try:
        torch.compile(torch.neg)(torch.zeros(8, device="cuda"))
    except RuntimeError:
        return False
    return True
