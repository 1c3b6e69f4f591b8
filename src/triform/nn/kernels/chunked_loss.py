"""The loss over a large vocabulary, a few rows at a time.

The logits are B · T · V numbers, more than everything else that training keeps in memory. On CUDA, if there are
many of them, the rows are split into chunks, and logits, loss and gradients are computed for one chunk at a time.
Only one chunk of the logits exists at any moment, and the backward pass has nothing left to compute.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.nn.kernels.bf16_weights import matmul_dtype, matmul_fp32_accum
from triform.nn.loss import IGNORE_INDEX, lm_head_loss

MIN_CHUNKED_LOGITS = 1 << 27  # fewer logits than this are computed at once
MAX_CHUNK_LOGITS = 1 << 29  # logits of one chunk
VOCAB_PAD_MULTIPLE = 64  # the vocabulary is padded to a multiple of this, which tensor cores want


def fast_lm_head_loss(states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    """Compute `triform.nn.loss.lm_head_loss`, in chunks if there are many logits on CUDA."""
    is_large = targets.numel() * head.out_features > MIN_CHUNKED_LOGITS
    if is_large and states.is_cuda and torch.is_grad_enabled():
        return chunked_cross_entropy(states, head, targets, smoothing)
    return lm_head_loss(states, head, targets, smoothing)


def chunked_cross_entropy(
    states: Tensor, head: nn.Linear, targets: Tensor, smoothing: float, max_logits: int = MAX_CHUNK_LOGITS
) -> Tensor:
    """Return the same loss, computed together with its gradients a few rows at a time."""
    dtype = matmul_dtype(states)
    chunk_rows = max(VOCAB_PAD_MULTIPLE, max_logits // head.out_features // VOCAB_PAD_MULTIPLE * VOCAB_PAD_MULTIPLE)
    with torch.autocast(states.device.type, enabled=False):
        loss: Tensor = _ChunkedCrossEntropy.apply(
            states.flatten(0, -2), head.weight, head.bias, targets.flatten(), smoothing, dtype, chunk_rows
        )  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while the logits exist; backward only scales them."""

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
        d_states, d_weight = [], None  # a frozen weight gets no gradient
        d_bias = torch.zeros_like(b) if b is not None and ctx.needs_input_grad[2] else None
        loss_and_grad = (
            _compiled_cross_entropy_and_grad() if states.is_cuda and can_compile() else cross_entropy_and_grad
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
    """Return the summed loss of some rows and its gradient by their logits; further columns are padding."""
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
    """Return the compiled function, which reads the logits twice and writes them once."""
    return torch.compile(cross_entropy_and_grad, dynamic=False)


@cache
def can_compile() -> bool:
    """Return whether this machine can compile for CUDA, which needs a C compiler."""
    try:
        torch.compile(torch.neg)(torch.zeros(8, device="cuda"))
    except RuntimeError:
        return False
    return True
