"""Losses over classes or a vocabulary. All of them are summed; the caller divides once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import TrainConfig
from triform.errors import NonFiniteError

IGNORE_INDEX = -100  # a target that does not count
HeadLoss = Callable[[Tensor, nn.Linear, Tensor, float], Tensor]


class ModelWithLMHead(Protocol):
    """A model with a head over a vocabulary, and the function that computes the head's loss."""

    lm_head: nn.Linear
    head_loss: HeadLoss


def check_finite(logits: Tensor) -> None:  # (..., V)
    """Raise `NonFiniteError` if any logits are NaN or infinite."""
    if not logits.amax(dim=-1).isfinite().all():
        raise NonFiniteError


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # (..., V), (...) -> ()
    """Return the cross-entropy summed over the targets, computed in float32 at least.

    Args:
        logits: Unnormalised outputs (..., V).
        targets: Class indices (...); those equal to `IGNORE_INDEX` do not count.
        smoothing: Label smoothing from 0 to 1.

    Example:
        >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, IGNORE_INDEX]), smoothing=0.0)
        tensor(1.3863)
    """
    logits_fp32 = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(
        logits_fp32.flatten(0, -2),
        targets.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=smoothing,
        reduction="sum",
    )


def lm_head_loss(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    """Return the summed cross-entropy of the head's logits for states (B, T, D) and targets (B, T)."""
    return cross_entropy(head(states), targets, smoothing)


def r_drop_loss(logits_a: Tensor, logits_b: Tensor, targets: Tensor, smoothing: float, weight: float) -> Tensor:
    """Return the R-Drop loss (arXiv:2106.14448) of two passes (..., V) with different dropout, summed.

    It is the mean of both losses plus `weight` / 4 times their symmetric divergence.
    """
    loss = (cross_entropy(logits_a, targets, smoothing) + cross_entropy(logits_b, targets, smoothing)) / 2
    dtype = torch.promote_types(logits_a.dtype, torch.float32)
    log_p, log_q = (logits.log_softmax(dim=-1, dtype=dtype) for logits in (logits_a, logits_b))
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)  # (...)
    return loss + weight / 4 * torch.where(targets == IGNORE_INDEX, 0.0, divergence).sum()


def lm_training_loss(
    compute_states: Callable[[], Tensor], model: ModelWithLMHead, targets: Tensor, config: TrainConfig
) -> Tensor:
    """Return the training loss of a language model or translator, summed.

    Args:
        compute_states: Computes the states (B, T, D) that the head reads; called twice for R-Drop.
        model: The model whose head is used.
        targets: The tokens to predict (B, T).
        config: Label smoothing and R-Drop weight.
    """
    if config.r_drop:
        logits_a, logits_b = model.lm_head(compute_states()), model.lm_head(compute_states())
        return r_drop_loss(logits_a, logits_b, targets, config.label_smoothing, config.r_drop)
    return model.head_loss(compute_states(), model.lm_head, targets, config.label_smoothing)
