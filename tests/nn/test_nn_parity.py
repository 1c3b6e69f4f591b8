"""Every score, relation and reach, through every kernel, against the formula written another way."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import formula
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matching_cases import (
    DOT_PAIRS,
    HEADS,
    PAIRS,
    WIDTH,
    attended,
    inputs,
    matching,
    parameters_of,
    turned,
    with_gradients,
)
from rule_cases import Case, long_cases
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from triform.nn import kernels, pieces
from triform.nn.choice import automatic
from triform.nn.flex import prepared
from triform.nn.kernels import Kernel, explicit, frugal, fused

ON, OFF = True, False
KEEP = ((ON,) * 11, (OFF,) * 4 + (ON,) * 5 + (OFF,) * 2, (OFF,) * 11)  # whole, padded on both sides, nothing real
REACHES = {
    "full": Case(11, 11),
    "causal": Case(11, 11, causal=True),
    "window": Case(14, 14, width=3),
    "causal-window": Case(14, 14, causal=True, width=3),
    "padding": Case(11, 11, 3, keep=KEEP),
    "causal-window-padding": Case(11, 11, 3, causal=True, width=3, keep=KEEP),
    "packed": Case(12, 12, lengths=(5, 1, 6)),
    "packed-causal-window": Case(14, 14, causal=True, width=2, lengths=(4, 9, 1)),
    "cached": Case(4, 13, causal=True),
    "cached-window": Case(3, 13, causal=True, width=5),
    "cached-padding-one": Case(1, 11, 3, causal=True, keep=KEEP),
}


def kernels_of(score: str, position: str) -> list[Kernel]:
    """`fused` is for dot products alone; the others take all."""
    return [explicit, frugal, *([fused] if (score, position) in DOT_PAIRS else []), automatic]


def said_by(kernel: Kernel) -> Callable[[str], str]:
    return lambda text: f"{kernel.__name__}: {text}"


def by_formula(case: Case, score: str, position: str, qkv: tuple[Tensor, ...], made: kernels.Matching) -> Tensor:
    p = parameters_of(made)
    return formula.attention(*qkv, case.table, score, position, p, past_only=case.causal)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize(("score", "position"), PAIRS)
def test_every_kernel_equals_the_formula_forward_and_backward(
    score: str, position: str, reach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SHORTEST", 3)  # so that short texts are cut too
    case, made = REACHES[reach], matching(score, position, causal=REACHES[reach].causal)
    a_query = case.rows * HEADS * min(case.s, case.rule.span.width) * made.score.cost(WIDTH)
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 4 * a_query)
    for kv_heads in (HEADS, 2, 1):
        qkv = inputs(case.rows, case.t, case.s, kv_heads)
        leaves = [*qkv, *made.parameters()]
        wanted = list(with_gradients(by_formula(case, score, position, qkv, made), leaves))
        assert all(grad.abs().sum() > 0 for grad in wanted)
        for kernel in kernels_of(score, position)[: None if kv_heads == 2 else -1]:
            got = with_gradients(attended(kernel, qkv, case.rule, made), leaves)
            for ours, theirs in zip(got, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11, msg=said_by(kernel))


def test_the_cases_above_are_really_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SHORTEST", 3)
    counts = {name: len(pieces.cut(case.rule, case.t, case.s)) for name, case in REACHES.items()}
    assert {name for name, count in counts.items() if count > 3} == {
        *("window", "causal-window", "causal-window-padding", "packed-causal-window")
    }


@given(long_cases(), st.sampled_from(PAIRS), st.sampled_from([HEADS, 2, 1]), st.sampled_from([5, 16, 50]))
@settings(max_examples=35)
@example(Case(300, 300, 1, causal=True, width=33), ("scaled_dot", "t5"), 2, 16)
@example(Case(257, 257, 1, width=9), ("cosine", "alibi"), 1, 16)
@example(Case(193, 193, 1, causal=True, width=2), ("scaled_dot", "relative"), 2, 16)
@example(Case(150, 150, 1, causal=True), ("additive", "t5"), 4, 50)
@example(Case(200, 200, 1, causal=True, width=8, lengths=(130, 6, 64)), ("dot", "rotary"), 2, 5)
def test_kernels_agree_on_texts_long_enough_to_be_cut(
    case: Case, pair: tuple[str, str], kv_heads: int, queries: int
) -> None:
    score, position = pair
    made = matching(score, position, causal=case.causal)
    qkv = inputs(case.rows, case.t, case.s, kv_heads)
    leaves = [*qkv, *made.parameters()]
    wanted = list(with_gradients(attended(explicit, qkv, case.rule, made), leaves))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MOST_AT_ONCE", queries * case.rows * HEADS * case.s)
        for kernel in kernels_of(score, position)[1:]:
            got = with_gradients(attended(kernel, qkv, case.rule, made), leaves)
            for ours, theirs in zip(got, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=said_by(kernel))


FLEX_REACHES = {
    "causal-window": Case(256, 256, 1, causal=True, width=40),
    "window": Case(256, 256, 1, width=20),
    "cached": Case(128, 256, 1, causal=True, width=50),
    "causal-window-padding": Case(
        256, 256, causal=True, width=40, keep=((ON,) * 256, (OFF,) * 60 + (ON,) * 100 + (OFF,) * 96)
    ),
    "packed": Case(256, 256, 1, causal=True, lengths=(100, 28, 128)),
    "packed-window": Case(256, 256, 1, width=30, lengths=(40, 216)),
}
FLEX_CASES = [
    pytest.param(
        *(reach, score, position),
        id=f"{reach}-{score}-{position}",
    )
    for reach in FLEX_REACHES
    for score, position in DOT_PAIRS
    if score == "scaled_dot" or reach == "causal-window-padding"  # a score and a reach do not know each other
]


@pytest.mark.parametrize(("reach", "score", "position"), FLEX_CASES)
def test_flex_attention_is_given_what_the_formula_asks(reach: str, score: str, position: str) -> None:
    case = FLEX_REACHES[reach]
    made = matching(score, position, causal=case.causal, width=16)
    q, k, v = (x.detach() for x in inputs(case.rows, case.t, case.s, 2, width=16))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        got = flex_attention(*prepared(*turned(made, q, k), v, case.rule, made))
        wanted = by_formula(case, score, position, (q, k, v), made)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
