"""The written-out formula, the fused kernel, and a third computation in plain Python loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_cases import MaskCase, short_mask_cases
from torch import Tensor

from triform.config import ModelConfig
from triform.nn.attention import (
    AttentionKernel,
    ContentScore,
    RelativePosition,
    ScoreFunction,
    attention_weights,
    naive_attention,
)
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.tiling import chunked_attention, tiled_sdpa_attention
from triform.nn.masks import PaddingMask, causal_mask, full_mask

HEADS, WIDTH = 2, 4
CONFIG = ModelConfig(d_model=HEADS * WIDTH, n_heads=HEADS)
SCORE_FN = ScoreFunction(ContentScore(CONFIG), RelativePosition())
KERNELS: list[AttentionKernel] = [naive_attention, tiled_sdpa_attention, chunked_attention, dispatch_attention]
FULLY_MASKED = MaskCase(  # row 0 reads nothing anywhere; row 1's first query reads nothing
    t=4, s=4, rows=2, causal=True, keep=((False,) * 4, (False, True, True, True))
)


def random_qkv(case: MaskCase, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int) -> Tensor:
        return torch.randn(case.rows, HEADS, length, WIDTH, generator=generator)

    return tuple(x.double().requires_grad_() for x in (draw(case.t), draw(case.s), draw(case.s)))


def output_and_gradients(kernel: AttentionKernel, case: MaskCase, seed: int = 0) -> list[Tensor]:
    """The kernel's answer and the gradients of q, k and v for an uneven cotangent."""
    inputs = random_qkv(case, seed)
    y = kernel(*inputs, case.mask, SCORE_FN, 0.0)
    return [y, *torch.autograd.grad((y * y.detach().cos()).sum(), inputs)]


def reference_attention(q: Tensor, k: Tensor, v: Tensor, case: MaskCase) -> tuple[list, list]:
    """Attention weights and outputs, as nested lists, from scalars."""
    all_weights, all_outputs = [], []
    for b in range(case.rows):
        for h in range(HEADS):
            for i in range(case.t):
                visible = [j for j in range(case.s) if case.may_read(b, i, j)]
                exp_scores = {
                    j: math.exp(sum(float(q[b, h, i, d] * k[b, h, j, d]) for d in range(WIDTH)) / WIDTH**0.5)
                    for j in visible
                }
                weights = [exp_scores.get(j, 0.0) / (sum(exp_scores.values()) or 1.0) for j in range(case.s)]
                all_weights.append(weights)
                all_outputs.append(
                    [sum(weights[j] * float(v[b, h, j, d]) for j in range(case.s)) for d in range(WIDTH)]
                )
    return all_weights, all_outputs


@given(short_mask_cases(), st.integers(0, 1000))
@settings(max_examples=150)
def test_fused_equals_explicit_forward_and_backward(case: MaskCase, seed: int) -> None:
    for ours, theirs in zip(
        output_and_gradients(tiled_sdpa_attention, case, seed),
        output_and_gradients(naive_attention, case, seed),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@given(short_mask_cases(max_len=4))
@settings(max_examples=30)
def test_explicit_equals_the_formula_by_loops(case: MaskCase) -> None:
    q, k, v = random_qkv(case)
    wanted_weights, expected = reference_attention(q.detach(), k.detach(), v.detach(), case)
    actual = naive_attention(q, k, v, case.mask, SCORE_FN, 0.0)
    torch.testing.assert_close(actual.flatten(0, 2), torch.tensor(expected).double(), rtol=0, atol=1e-12)
    weights = attention_weights(q, k, case.mask, SCORE_FN)
    torch.testing.assert_close(weights.flatten(0, 2), torch.tensor(wanted_weights).double(), rtol=0, atol=1e-12)


@given(short_mask_cases())
def test_weights_sum_to_one_over_what_may_be_read_and_are_zero_elsewhere(case: MaskCase) -> None:
    q, k, _ = random_qkv(case)
    weights = attention_weights(q, k, case.mask, SCORE_FN)
    table = case.dense_mask.expand_as(weights)
    assert (weights[~table] == 0).all()
    assert (weights[table] > 0).all()
    sums = weights.sum(-1)
    torch.testing.assert_close(sums, table.any(-1).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_may_read_nothing_gets_zeros_and_finite_gradients(
    kernel: AttentionKernel, dtype: torch.dtype
) -> None:
    inputs = [x.detach().to(dtype).requires_grad_() for x in random_qkv(FULLY_MASKED)]
    y = kernel(*inputs, FULLY_MASKED.mask, SCORE_FN, 0.0)
    assert (y[0] == 0).all()
    assert (y[1, :, 0] == 0).all()
    assert (y[1, :, 1:] != 0).all()
    for x, grad in zip("qkv", torch.autograd.grad(y.square().sum(), inputs), strict=True):
        assert grad.isfinite().all(), x
        assert (grad[0] == 0).all(), x


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_target_longer_than_its_source_reads_all_of_it(kernel: AttentionKernel) -> None:
    """Cross-attention: three source tokens, of which one is padding, under five queries."""
    keep = torch.tensor([[True, True, False]])
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, generator=generator) for n in (5, 3, 3))
    visible_kv = k[:, :, :2], v[:, :, :2]
    expected = ((q @ visible_kv[0].mT) / math.sqrt(WIDTH)).softmax(-1) @ visible_kv[1]
    torch.testing.assert_close(kernel(q, k, v, PaddingMask(keep), SCORE_FN, 0.0), expected, rtol=0, atol=1e-12)
    expected_full = ((q @ k.mT) / math.sqrt(WIDTH)).softmax(-1) @ v
    torch.testing.assert_close(kernel(q, k, v, full_mask, SCORE_FN, 0.0), expected_full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_hidden_keys_and_values_have_no_influence_and_no_gradient(kernel: AttentionKernel) -> None:
    case = MaskCase(t=3, s=3, rows=1, causal=True, keep=((True, True, False),))
    q, k, v = random_qkv(case)
    _, _, dk, dv = output_and_gradients(kernel, case)
    assert (dk[0, :, 2] == 0).all()
    assert (dv[0, :, 2] == 0).all()
    outliers = [x.detach().clone() for x in (k, v)]
    for x in outliers:
        x[:, :, 2] = 1e6
    assert torch.equal(kernel(q, *outliers, case.mask, SCORE_FN, 0.0), kernel(q, k, v, case.mask, SCORE_FN, 0.0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_too_large_for_exp_do_not_overflow(kernel: AttentionKernel) -> None:
    case = MaskCase(t=3, s=3, rows=1, causal=True)
    q, k, v = (x.detach() * 1e4 for x in random_qkv(case))
    assert kernel(q, k, v, causal_mask, SCORE_FN, 0.0).isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_takes_weights_away_and_keeps_their_mean(kernel: AttentionKernel) -> None:
    case = MaskCase(t=1, s=400, rows=50)
    q, k, _ = (x.detach() for x in random_qkv(case))
    y = kernel(q, k, torch.ones_like(k), full_mask, SCORE_FN, 0.3)  # the sum of the surviving weights
    assert y.std() > 0.01
    assert y.mean().item() == pytest.approx(1.0, abs=0.05)


def test_the_mean_of_all_values_when_all_keys_are_alike() -> None:
    """Worked by hand: equal scores make attention an average; causal makes it a running one."""
    q, k = torch.ones(1, 1, 3, WIDTH), torch.ones(1, 1, 3, WIDTH)
    v = torch.tensor([3.0, 6.0, 12.0])[None, None, :, None].expand(1, 1, 3, WIDTH)
    for kernel in KERNELS:
        assert kernel(q, k, v, full_mask, SCORE_FN, 0.0)[0, 0, :, 0].tolist() == pytest.approx([7, 7, 7])
        assert kernel(q, k, v, causal_mask, SCORE_FN, 0.0)[0, 0, :, 0].tolist() == pytest.approx([3, 4.5, 7])
