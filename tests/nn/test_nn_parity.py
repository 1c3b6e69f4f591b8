"""Every score, relation and mask, through every kernel, against the formula written another way."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import reference_attention
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mask_cases import MaskCase, long_mask_cases
from score_cases import (
    DOT_PAIRS,
    HEADS,
    PAIRS,
    WIDTH,
    build_score_fn,
    output_and_gradients,
    parameters_of,
    random_qkv,
    rotate_qk,
    run_kernel,
)
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from triform.nn.attention import AttentionKernel, ScoreFunction, naive_attention
from triform.nn.kernels import sdpa, tiling
from triform.nn.kernels.dispatch import dispatch_attention
from triform.nn.kernels.flex import flex_attention_args
from triform.nn.kernels.sdpa import mask_info
from triform.nn.kernels.tiling import chunked_attention, tiled_sdpa_attention

REAL, PADDING = True, False
# Whole, padded on both sides, nothing real.
KEEP = ((REAL,) * 11, (PADDING,) * 4 + (REAL,) * 5 + (PADDING,) * 2, (PADDING,) * 11)
MASK_CASES = {
    "full": MaskCase(11, 11),
    "causal": MaskCase(11, 11, causal=True),
    "window": MaskCase(14, 14, width=3),
    "causal-window": MaskCase(14, 14, causal=True, width=3),
    "padding": MaskCase(11, 11, 3, keep=KEEP),
    "causal-window-padding": MaskCase(11, 11, 3, causal=True, width=3, keep=KEEP),
    "packed": MaskCase(12, 12, lengths=(5, 1, 6)),
    "packed-causal-window": MaskCase(14, 14, causal=True, width=2, lengths=(4, 9, 1)),
    "cached": MaskCase(4, 13, causal=True),
    "cached-window": MaskCase(3, 13, causal=True, width=5),
    "cached-padding-one": MaskCase(1, 11, 3, causal=True, keep=KEEP),
}


def supported_kernels(score: str, position: str) -> list[AttentionKernel]:
    """`fused` is for dot products alone; the others take all."""
    return [
        naive_attention,
        chunked_attention,
        *([tiled_sdpa_attention] if (score, position) in DOT_PAIRS else []),
        dispatch_attention,
    ]


def error_prefix(kernel: AttentionKernel) -> Callable[[str], str]:
    return lambda text: f"{kernel.__name__}: {text}"


def reference_output(
    case: MaskCase, score: str, position: str, qkv: tuple[Tensor, ...], score_fn: ScoreFunction
) -> Tensor:
    p = parameters_of(score_fn)
    return reference_attention.attention(*qkv, case.dense_mask, score, position, p, causal=case.causal)


@pytest.mark.parametrize("mask_name", MASK_CASES)
@pytest.mark.parametrize(("score", "position"), PAIRS)
def test_every_kernel_equals_the_formula_forward_and_backward(
    score: str, position: str, mask_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "MIN_TILE_CPU", 3)  # so that short texts are cut too
    case, score_fn = MASK_CASES[mask_name], build_score_fn(score, position, causal=MASK_CASES[mask_name].causal)
    elements_per_pair = 1 if score_fn.score.is_dot_product else WIDTH
    elements_per_query = case.rows * HEADS * min(case.s, mask_info(case.mask).span.width) * elements_per_pair
    monkeypatch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", 4 * elements_per_query)
    for kv_heads in (HEADS, 2, 1):
        qkv = random_qkv(case.rows, case.t, case.s, kv_heads)
        leaves = [*qkv, *score_fn.parameters()]
        expected = list(output_and_gradients(reference_output(case, score, position, qkv, score_fn), leaves))
        assert all(grad.abs().sum() > 0 for grad in expected)
        for kernel in supported_kernels(score, position)[: None if kv_heads == 2 else -1]:
            actual = output_and_gradients(run_kernel(kernel, qkv, case.mask, score_fn), leaves)
            for ours, theirs in zip(actual, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11, msg=error_prefix(kernel))


def test_the_cases_above_are_really_cut() -> None:
    counts = {
        name: len(tiling.split_into_tiles(case.mask, case.t, case.s, min_len=3))
        for name, case in MASK_CASES.items()
    }
    assert {name for name, count in counts.items() if count > 3} == {
        *("window", "causal-window", "causal-window-padding", "packed-causal-window")
    }


@given(long_mask_cases(), st.sampled_from(PAIRS), st.sampled_from([HEADS, 2, 1]), st.sampled_from([5, 16, 50]))
@settings(max_examples=35)
@example(MaskCase(300, 300, 1, causal=True, width=33), ("scaled_dot", "t5"), 2, 16)
@example(MaskCase(257, 257, 1, width=9), ("cosine", "alibi"), 1, 16)
@example(MaskCase(193, 193, 1, causal=True, width=2), ("scaled_dot", "relative"), 2, 16)
@example(MaskCase(150, 150, 1, causal=True), ("additive", "t5"), 4, 50)
@example(MaskCase(200, 200, 1, causal=True, width=8, lengths=(130, 6, 64)), ("dot", "rotary"), 2, 5)
def test_kernels_agree_on_texts_long_enough_to_be_cut(
    case: MaskCase, pair: tuple[str, str], kv_heads: int, queries: int
) -> None:
    score, position = pair
    score_fn = build_score_fn(score, position, causal=case.causal)
    qkv = random_qkv(case.rows, case.t, case.s, kv_heads)
    leaves = [*qkv, *score_fn.parameters()]
    expected = list(output_and_gradients(run_kernel(naive_attention, qkv, case.mask, score_fn), leaves))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", queries * case.rows * HEADS * case.s)
        for kernel in supported_kernels(score, position)[1:]:
            actual = output_and_gradients(run_kernel(kernel, qkv, case.mask, score_fn), leaves)
            for ours, theirs in zip(actual, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=error_prefix(kernel))


FLEX_MASK_CASES = {
    "causal-window": MaskCase(256, 256, 1, causal=True, width=40),
    "window": MaskCase(256, 256, 1, width=20),
    "cached": MaskCase(128, 256, 1, causal=True, width=50),
    "causal-window-padding": MaskCase(
        256, 256, causal=True, width=40, keep=((REAL,) * 256, (PADDING,) * 60 + (REAL,) * 100 + (PADDING,) * 96)
    ),
    "packed": MaskCase(256, 256, 1, causal=True, lengths=(100, 28, 128)),
    "packed-window": MaskCase(256, 256, 1, width=30, lengths=(40, 216)),
}
FLEX_CASES = [
    pytest.param(
        *(mask_name, score, position),
        id=f"{mask_name}-{score}-{position}",
    )
    for mask_name in FLEX_MASK_CASES
    for score, position in DOT_PAIRS
    if score == "scaled_dot" or mask_name == "causal-window-padding"  # a score and a mask do not know each other
]


@pytest.mark.parametrize(("mask_name", "score", "position"), FLEX_CASES)
def test_flex_attention_is_given_what_the_formula_asks(mask_name: str, score: str, position: str) -> None:
    case = FLEX_MASK_CASES[mask_name]
    score_fn = build_score_fn(score, position, causal=case.causal, width=16)
    q, k, v = (x.detach() for x in random_qkv(case.rows, case.t, case.s, 2, width=16))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        actual = flex_attention(*flex_attention_args(*rotate_qk(score_fn, q, k), v, case.mask, score_fn))
        expected = reference_output(case, score, position, (q, k, v), score_fn)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
