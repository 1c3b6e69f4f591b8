"""Selects the attention kernel from the inputs and the device. There is no setting for it."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from triform.nn.attention import Attention, AttentionKernel, ScoreFunction
from triform.nn.kernels import flex, tiling, varlen
from triform.nn.kernels.chunked_loss import fast_lm_head_loss
from triform.nn.kernels.sdpa import is_single_tile, mask_info, min_tile_len, sdpa_attention, single_query_sdpa
from triform.nn.masks import AttentionMask

MIN_FLEX_LEN = 1024  # queries from which on a narrow window on CUDA is worth compiling FlexAttention
MIN_WINDOW_RATIO = 4  # a window is narrow if the text is this many times longer
ModelT = TypeVar("ModelT", bound=nn.Module)


def use_fast_kernels(model: ModelT) -> ModelT:
    """Let a model compute attention and its loss with the fastest kernels. The results stay the same.

    Returns:
        The model itself.

    Example:
        >>> from triform.config import DataSizes, ModelConfig
        >>> from triform.models.decoder import Decoder
        >>> sizes = DataSizes(vocab_size=100, max_len=16)
        >>> model = use_fast_kernels(Decoder(ModelConfig(d_model=8, d_ff=16, n_layers=1, n_heads=2), sizes))
        >>> model.blocks[0].attn.kernel.__name__
        'dispatch_attention'
    """
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = dispatch_attention
        if hasattr(module, "head_loss"):
            module.head_loss = fast_lm_head_loss  # type: ignore[assignment]
    return model


class KernelChoice(NamedTuple):
    """A kernel, and why it was selected."""

    name: str
    kernel: AttentionKernel
    reason: str


FUSED = "PyTorch's fused attention"
SINGLE_QUERY = KernelChoice("fused", single_query_sdpa, f"{FUSED}; the newest token reads all keys")
CHUNKED = KernelChoice(
    "formula", tiling.chunked_attention, "in chunks of queries, because the score is not a dot product"
)
VARLEN = KernelChoice("flash", varlen.varlen_attention, "packed sequences in half precision on CUDA")
FLEX = KernelChoice("flex", flex.flex_attention_kernel, "a window on CUDA; compiled, skips blocks outside it")
SDPA = KernelChoice("fused", sdpa_attention, FUSED)
SDPA_TILED = KernelChoice(
    "fused in tiles", tiling.tiled_sdpa_attention, f"{FUSED}, only on tiles that the mask allows"
)


def select_kernel(
    q: Tensor, k: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> KernelChoice:
    """Return the fastest kernel that computes this attention exactly."""
    t, s, info = q.shape[-2], k.shape[-2], mask_info(mask)
    score, relative_position = score_fn.score, score_fn.relative_position
    if not score.is_dot_product or relative_position.needs_naive_formula:
        return CHUNKED
    is_plain = not relative_position.has_distance_bias and not dropout
    if t == 1 and is_plain and info.is_shift_invariant and info.span_is_exact and s <= info.span.before + 1:
        return SINGLE_QUERY
    if q.is_cuda and info.is_packed:
        return VARLEN if varlen.is_supported(q, mask, score_fn, dropout) else SDPA_TILED
    is_narrow = MIN_WINDOW_RATIO * info.span.width <= s
    if q.is_cuda and is_narrow and t >= MIN_FLEX_LEN and flex.is_supported(q, k, mask, score_fn, dropout):
        return FLEX
    min_len = min_tile_len(q)
    if is_single_tile(info, t, min_len) or len(tiling.split_into_tiles(mask, t, s, min_len=min_len)) == 1:
        return SDPA
    return SDPA_TILED


def dispatch_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, score_fn: ScoreFunction, dropout: float
) -> Tensor:
    """Compute attention by the kernel that `select_kernel` returns."""
    return select_kernel(q, k, mask, score_fn, dropout).kernel(q, k, v, mask, score_fn, dropout)
