"""Training losses of the tasks: cross-entropy, R-Drop, SimCut or distillation.

All of them are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from triform.config import TrainConfig
from triform.nn.embedding import InputEmbedding
from triform.nn.loss import IGNORE_INDEX, HeadLoss, cross_entropy


class ModelWithLMHead(Protocol):
    """A model with a head over a vocabulary, and the function that computes the head's loss."""

    lm_head: nn.Linear
    head_loss: HeadLoss

    def modules(self) -> Iterator[nn.Module]: ...


def token_cutoff(model: nn.Module | ModelWithLMHead, config: TrainConfig) -> AbstractContextManager[None]:
    """Return the context of a training loss, in which tokens are cut unless SimCut does it in one of its passes."""
    return cut_tokens(model, 0.0 if config.simcut else config.token_cutoff)


@contextmanager
def cut_tokens(model: nn.Module | ModelWithLMHead, share: float) -> Iterator[None]:
    """Set the input vectors of a random share of all tokens to 0 inside the `with` block (Shen et al., 2020)."""
    if not share:
        yield
        return

    def cut(embedding: nn.Module, inputs: object, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        return x.masked_fill(draw_cut_tokens(x.shape[:-1], share, x.device)[..., None], 0.0)

    embeddings = [module for module in model.modules() if isinstance(module, InputEmbedding)]
    hooks = [embedding.register_forward_hook(cut) for embedding in embeddings]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def draw_cut_tokens(shape: torch.Size, share: float, device: torch.device) -> Tensor:  # -> (B, T)
    """Choose each token with the probability `share`."""
    return torch.rand(shape, device=device) < share


def consistency_loss(
    compute_logits: Callable[[], Tensor], model: nn.Module | ModelWithLMHead, targets: Tensor, config: TrainConfig
) -> Tensor:
    """Return the loss of two passes that should agree, summed: SimCut if the settings ask for it, else R-Drop.

    Args:
        compute_logits: Computes the logits (..., V); called twice.
        model: The model that computes them.
        targets: The labels or tokens to predict (...).
        config: The weights, label smoothing, and the share of cut tokens.
    """
    logits = compute_logits()
    if not config.simcut:
        return r_drop_loss(logits, compute_logits(), targets, config.label_smoothing, config.r_drop)
    with cut_tokens(model, config.token_cutoff):
        cut_logits = compute_logits()
    return simcut_loss(logits, cut_logits, targets, config.label_smoothing, config.simcut)


def r_drop_loss(logits_a: Tensor, logits_b: Tensor, targets: Tensor, smoothing: float, weight: float) -> Tensor:
    """Return the R-Drop loss (arXiv:2106.14448) of two passes (..., V) with different dropout, summed.

    It is the mean of both losses plus `weight` / 4 times their symmetric divergence.
    """
    loss = (cross_entropy(logits_a, targets, smoothing) + cross_entropy(logits_b, targets, smoothing)) / 2
    log_p, log_q = _log_probs(logits_a), _log_probs(logits_b)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)  # (...)
    return loss + weight / 4 * torch.where(targets == IGNORE_INDEX, 0.0, divergence).sum()


def simcut_loss(logits: Tensor, cut_logits: Tensor, targets: Tensor, smoothing: float, weight: float) -> Tensor:
    """Return the SimCut loss (Gao et al., 2022, NAACL) of a pass with all tokens and one with cut tokens, summed.

    It is the cross-entropy of the first pass (..., V) plus `weight` times the divergence of the second from it.
    Gradients reach both passes.
    """
    log_p, log_q = _log_probs(logits), _log_probs(cut_logits)
    divergence = (log_p.exp() * (log_p - log_q)).sum(dim=-1)  # (...)
    loss = cross_entropy(logits, targets, smoothing)
    return loss + weight * torch.where(targets == IGNORE_INDEX, 0.0, divergence).sum()


def _log_probs(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


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
        compute_states: Computes the states (B, T, D) that the head reads; called twice for R-Drop and SimCut.
        model: The model whose head is used.
        targets: The tokens to predict (B, T).
        config: Label smoothing and the settings of R-Drop, SimCut and distillation.
        teacher_logits: The outputs (B, T, V) of the teacher, if there is one.
    """
    if teacher_logits is not None:
        return distillation_loss(model.lm_head(compute_states()), teacher_logits, targets, config)
    if config.r_drop or config.simcut:
        return consistency_loss(lambda: model.lm_head(compute_states()), model, targets, config)
    return model.head_loss(compute_states(), model.lm_head, targets, config.label_smoothing)
