"""`model.attention_scale`: the size whose square root divides the dot product of a query and a key."""

from __future__ import annotations

import math

import pytest
import torch

from triform.config import ModelConfig, ScaleKind
from triform.errors import ConfigError
from triform.nn.attention import Attention, AttentionKernel, naive_attention
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.sdpa import sdpa_attention
from triform.nn.masks import causal_mask

DIVISORS = {"head_dim": math.sqrt(8), "d_model": math.sqrt(32), "none": 1.0}


@pytest.mark.parametrize("kernel", [naive_attention, sdpa_attention, dispatch_attention])
@pytest.mark.parametrize("scale", DIVISORS)
def test_attention_is_the_formula_with_the_chosen_divisor(scale: ScaleKind, kernel: AttentionKernel) -> None:
    torch.manual_seed(0)
    attention = Attention(ModelConfig(d_model=32, n_heads=4, attention_scale=scale)).double()
    attention.kernel = kernel
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    heads = (projection.view(2, 6, 4, 8).transpose(1, 2) for projection in (
        attention.q_proj(x), *attention.kv_proj(x).chunk(2, dim=-1),
    ))  # fmt: skip
    q, k, v = heads
    scores = q @ k.transpose(-2, -1) / DIVISORS[scale]
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
    expected = attention.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, x, causal_mask, torch.arange(6)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_only_the_scaled_dot_product_is_divided(score: str) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.attention_scale=d_model is for model\.attention_score=scaled_dot"
    ):
        ModelConfig(attention_score=score, attention_scale="d_model", positions="learned")  # type: ignore[arg-type]
    assert ModelConfig(attention_score=score, positions="learned").score_scale == 1.0  # type: ignore[arg-type]
