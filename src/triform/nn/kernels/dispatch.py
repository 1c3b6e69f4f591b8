"""Which kernel computes attention: chosen by what is needed and where it runs, never by a setting."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from triform.nn.kernels import flex, varlen
from triform.nn.kernels.sdpa import (
    AttentionKernel,
    ScoreFunction,
    chunked_attention,
    sdpa_attention,
    single_query_sdpa,
)
from triform.nn.kernels.tiling import is_on_gpu, split_into_tiles
from triform.nn.masks import AttentionMask

MIN_FLEX_LEN = 1024  # from here on a narrow window on CUDA is worth a compilation
MIN_WINDOW_RATIO = 4  # a window is narrow when the text is so many times as long


class KernelChoice(NamedTuple):
    """A kernel, and why it was taken."""

    name: str
    kernel: AttentionKernel
    reason: str


SINGLE_QUERY = KernelChoice(
    "fused", single_query_sdpa, "torch's fused attention; the newest token reads all there is, nothing is cut"
)
CHUNKED = KernelChoice("formula", chunked_attention, "no dot product gives these weights; a few queries at a time")
VARLEN = KernelChoice("flash", varlen.varlen_attention, "packed rows in half precision on CUDA")
FLEX = KernelChoice(
    "flex", flex.flex_attention_kernel, "a window on CUDA; compiled, only blocks within reach are computed"
)
SDPA = KernelChoice("fused", sdpa_attention, "torch's fused attention")
SDPA_TILED = KernelChoice(
    "fused in pieces", sdpa_attention, "torch's fused attention on what is within reach, the rest is left out"
)


def select_kernel(
    q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> KernelChoice:
    """The fastest kernel that computes this exactly."""
    t, s = q.shape[-2], k.shape[-2]
    if (
        t == 1
        and mask.is_shift_invariant
        and mask.span_is_exact
        and s <= mask.span.before + 1
        and score_fn.is_plain_dot_product
        and not dropout
    ):
        return SINGLE_QUERY
    if not score_fn.score.is_dot_product or score_fn.relative_position.needs_weights:
        return CHUNKED
    if q.is_cuda and len(mask.regions(t, s)) > 1:
        return VARLEN if varlen.is_supported(q, mask, score_fn, dropout) else SDPA_TILED
    is_narrow = MIN_WINDOW_RATIO * mask.span.width <= s
    if q.is_cuda and is_narrow and t >= MIN_FLEX_LEN and flex.is_supported(q, k, mask, score_fn, dropout):
        return FLEX
    return SDPA if len(split_into_tiles(mask, t, s, is_gpu=is_on_gpu(q))) == 1 else SDPA_TILED


def dispatch_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Attention by the kernel that fits."""
    return select_kernel(q, k, mask, score_fn, dropout).kernel(q, k, v, mask, score_fn, dropout)
