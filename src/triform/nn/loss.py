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
from triform.nn.kernels.bf16_weights import matmul_dtype, matmul_fp32_accum

IGNORE_INDEX = -100  # a target that is not a prediction
MIN_CHUNKED_LOGITS = 1 << 27  # from here on they are made in parts,
MAX_CHUNK_LOGITS = 1 << 29  # each of so many
VOCAB_PAD_MULTIPLE = 64  # a vocabulary is filled up to a multiple of this, which matrix units want


def check_finite(logits: Tensor) -> None:  # (..., V)
    """Refuse logits that give no probabilities: NaN or infinite ones."""
    if not logits.amax(dim=-1).isfinite().all():
        raise NonFiniteError


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # (..., V), (...) -> ()
    """Summed over targets that are predictions; in float32 at least."""
    logits_fp32 = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(
        logits_fp32.flatten(0, -2),
        targets.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=smoothing,
        reduction="sum",
    )


def lm_head_loss(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    """Cross entropy of the head's scores (B, T, D), (B, T) -> (), summed; in parts where they are many."""
    is_large = targets.numel() * head.out_features > MIN_CHUNKED_LOGITS
    if not (is_large and states.is_cuda and torch.is_grad_enabled()):
        return cross_entropy(head(states), targets, smoothing)
    return chunked_cross_entropy(states, head, targets, smoothing)


def r_drop_loss(logits_a: Tensor, logits_b: Tensor, targets: Tensor, smoothing: float, weight: float) -> Tensor:
    """Of two readings (…, V) that dropout made differ: the mean loss, and how far apart they are, summed.

    That distance, the divergence each way, is R-Drop's (arXiv:2106.14448).
    """
    loss = (cross_entropy(logits_a, targets, smoothing) + cross_entropy(logits_b, targets, smoothing)) / 2
    log_p, log_q = (
        logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        for logits in (logits_a, logits_b)
    )
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)  # (…)
    return loss + weight / 4 * torch.where(targets == IGNORE_INDEX, 0.0, divergence).sum()


def lm_training_loss(
    compute_states: Callable[[], Tensor], head: nn.Linear, targets: Tensor, config: TrainConfig
) -> Tensor:
    """What a model of tokens learns by: the loss of the states it is asked for, or of two readings of them."""
    if config.r_drop:
        return r_drop_loss(
            head(compute_states()), head(compute_states()), targets, config.label_smoothing, config.r_drop
        )
    return lm_head_loss(compute_states(), head, targets, config.label_smoothing)


def chunked_cross_entropy(
    states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float, max_logits: int = MAX_CHUNK_LOGITS
) -> Tensor:
    """The same a few rows at a time, gradients included."""
    dtype = matmul_dtype(states)
    chunk_rows = max(VOCAB_PAD_MULTIPLE, max_logits // head.out_features // VOCAB_PAD_MULTIPLE * VOCAB_PAD_MULTIPLE)
    with torch.autocast(states.device.type, enabled=False):
        loss: Tensor = _ChunkedCrossEntropy.apply(
            states.flatten(0, -2), head.weight, head.bias, targets.flatten(), smoothing, dtype, chunk_rows
        )  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients while the scores are there; backward only multiplies by what comes in."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
        dtype: torch.dtype, chunk_rows: int,
    ) -> Tensor:  # fmt: skip
        vocab_size, padding = len(weight), -len(weight) % VOCAB_PAD_MULTIPLE
        w = F.pad(weight.to(dtype), (0, 0, 0, padding))  # (V', D)
        accum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        b = None if bias is None else F.pad(bias.to(accum_dtype), (0, padding))
        loss = states.new_zeros((), dtype=accum_dtype)
        d_states, d_weight = [], None  # of what is frozen there is none
        d_bias = torch.zeros_like(b) if b is not None and ctx.needs_input_grad[2] else None
        loss_and_grad = (
            _compiled_cross_entropy_and_grad() if states.is_cuda and _can_compile() else cross_entropy_and_grad
        )
        chunks = (tensor.split(chunk_rows) for tensor in (states.to(dtype), targets))  # type: ignore[no-untyped-call]
        for x, chunk_targets in zip(*chunks, strict=True):
            chunk_loss, d_logits = loss_and_grad(x @ w.T, b, chunk_targets, vocab_size, smoothing)
            loss += chunk_loss
            d_states.append(d_logits @ w)
            if ctx.needs_input_grad[1]:
                d_chunk = matmul_fp32_accum(d_logits.T, x, accum_dtype)
                d_weight = d_chunk if d_weight is None else d_weight.add_(d_chunk)
            if d_bias is not None:
                d_bias += d_logits.sum(dim=0, dtype=accum_dtype)
        parameter_grads = (
            None if tensor is None else tensor[:vocab_size].to(weight.dtype) for tensor in (d_weight, d_bias)
        )
        ctx.save_for_backward(torch.cat(d_states).to(states.dtype), *parameter_grads)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_grads = (None if grad is None else grad * grads[0].to(grad.dtype) for grad in ctx.saved_tensors)
        return *input_grads, None, None, None, None


def cross_entropy_and_grad(
    logits: Tensor, bias: Tensor | None, targets: Tensor, vocab_size: int, smoothing: float
) -> tuple[Tensor, Tensor]:  # (R, V'), (V'), (R) -> (), (R, V')
    """The summed loss of some rows, and its gradient by their scores; columns from n on are filling."""
    logits_fp32 = logits if logits.dtype == torch.float64 else logits.float()
    if bias is not None:
        logits_fp32 = logits_fp32 + bias
    column = torch.arange(logits.shape[1], device=logits.device)
    is_in_vocab = column < vocab_size
    is_counted = targets != IGNORE_INDEX
    target_index = targets.clamp(min=0)[:, None]  # (R, 1)
    log_normalizer = torch.where(is_in_vocab, logits_fp32, float("-inf")).logsumexp(dim=-1, keepdim=True)  # (R, 1)
    target_logit = logits_fp32.gather(1, target_index)
    loss = log_normalizer - (1.0 - smoothing) * target_logit
    if smoothing:
        loss = loss - torch.where(is_in_vocab, logits_fp32, 0.0).sum(dim=-1, keepdim=True) * (
            smoothing / vocab_size
        )
    target_probs = (column == target_index).to(logits_fp32.dtype) * (1.0 - smoothing) + smoothing / vocab_size
    d_logits = torch.where(
        is_in_vocab & is_counted[:, None], (logits_fp32 - log_normalizer).exp() - target_probs, 0.0
    )
    return torch.where(is_counted, loss[:, 0], 0.0).sum(), d_logits.to(logits.dtype)


@cache
def _compiled_cross_entropy_and_grad() -> Any:
    """Compiled, so that scores are read twice and written once, whatever the steps above."""
    return torch.compile(cross_entropy_and_grad, dynamic=False)


@cache
def _can_compile() -> bool:
    """Whether anything can be compiled for CUDA here: that takes a C compiler, which not every machine has."""
    try:
        torch.compile(torch.neg)(torch.zeros(8, device="cuda"))
    except RuntimeError:
        return False
    return True
