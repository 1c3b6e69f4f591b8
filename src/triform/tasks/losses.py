"""Training losses of the tasks: cross-entropy, R-Drop, mixup or distillation.

All of them are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
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


def mix_pairs(pooled: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mix the pooled vector of each text with that of the text before it in the batch (Guo et al., 2019).

    Args:
        pooled: One vector for each text (B, D).
        targets: Their labels (B).
        alpha: The parameter of the beta distribution of the weights.

    Returns:
        The mixed vectors (B, D), the labels of the other texts (B), and the weights of the own texts (B). A text
        whose neighbour is padding stays as it is.
    """
    partner, partner_targets = pooled.roll(1, dims=0), targets.roll(1, dims=0)
    concentration = torch.full((len(targets), 2), alpha, device=pooled.device)
    weights = torch._sample_dirichlet(concentration)[:, 0].to(pooled.dtype)
    weights = torch.where((partner_targets == IGNORE_INDEX) | (targets == IGNORE_INDEX), 1.0, weights)
    return torch.lerp(partner, pooled, weights[:, None]), partner_targets, weights


def mixup_loss(
    logits: Tensor, targets: Tensor, partner_targets: Tensor, weights: Tensor, smoothing: float
) -> Tensor:
    """Return the weighted cross-entropy of both labels of each mixed text, summed."""
    losses = [
        F.cross_entropy(
            logits.float(), labels, ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="none"
        )
        for labels in (targets, partner_targets)
    ]
    return (weights * losses[0] + (1 - weights) * losses[1]).sum()


def distillation_loss(logits: Tensor, teacher_logits: Tensor, targets: Tensor, config: TrainConfig) -> Tensor:
    """Return the loss of a student (Hinton et al., 2015), summed.

    It is `train.distill_weight` times the divergence of the student's probabilities (..., V) from those of the
    teacher at a temperature T, times T², plus the rest times the cross-entropy of the targets (...). T² keeps the
    size of the gradients.
    """
    weight, temperature = config.distill_weight, config.distill_temperature
    dtype = torch.promote_types(logits.dtype, torch.float32)
    student, teacher = ((output.to(dtype) / temperature).log_softmax(dim=-1) for output in (logits, teacher_logits))
    divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)  # (...)
    soft_loss = temperature**2 * torch.where(targets == IGNORE_INDEX, 0.0, divergence).sum()
    return weight * soft_loss + (1 - weight) * cross_entropy(logits, targets, config.label_smoothing)


def lm_training_loss(
    compute_states: Callable[[], Tensor],
    model: ModelWithLMHead,
    targets: Tensor,
    config: TrainConfig,
    teacher_logits: Tensor | None = None,
) -> Tensor:
    """Return the training loss of a language model or translator, summed.

    Args:
        compute_states: Computes the states (B, T, D) that the head reads; called twice for R-Drop.
        model: The model whose head is used.
        targets: The tokens to predict (B, T).
        config: Label smoothing, R-Drop weight and the settings of distillation.
        teacher_logits: The outputs (B, T, V) of the teacher, if there is one.
    """
    if teacher_logits is not None:
        return distillation_loss(model.lm_head(compute_states()), teacher_logits, targets, config)
    if config.r_drop:
        logits_a, logits_b = model.lm_head(compute_states()), model.lm_head(compute_states())
        return r_drop_loss(logits_a, logits_b, targets, config.label_smoothing, config.r_drop)
    return model.head_loss(compute_states(), model.lm_head, targets, config.label_smoothing)
