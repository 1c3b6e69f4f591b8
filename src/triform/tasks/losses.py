"""Training losses of the tasks: cross-entropy, or R-Drop where `train.r_drop` is set. All of them are summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from triform.config import TrainConfig
from triform.nn.loss import IGNORE_INDEX, HeadLoss, cross_entropy


class ModelWithLMHead(Protocol):
    """A model with a head over a vocabulary, and the function that computes the head's loss."""

    lm_head: nn.Linear
    head_loss: HeadLoss


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
