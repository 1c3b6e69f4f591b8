"""A rule says the same in every language: dense tensor, function of indices, flag of a fused kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import CPU, Case, cases
from torch.nn.attention.flex_attention import create_mask

from triform.nn.masks import Reading, Rule, causal, everything, real, window


def dense(rule: Rule, case: Case) -> torch.Tensor:
    return rule.dense(case.t, case.s, CPU).expand(case.rows, 1, case.t, case.s)


@given(cases())
def test_dense_equals_a_loop_over_every_query_and_key(case: Case) -> None:
    mask = case.rule.dense(case.t, case.s, CPU)
    assert mask.dtype == torch.bool
    assert mask.shape[0] == (case.rows if case.keep else 1)
    assert torch.equal(mask.expand(case.rows, 1, case.t, case.s), case.table)


@given(cases(longest=5))
def test_mask_mod_agrees_with_dense_index_by_index(case: Case) -> None:
    allows = case.rule.mask_mod(case.t, case.s)
    for b, h, q, k in torch.cartesian_prod(*map(torch.arange, (case.rows, 2, case.t, case.s))).view(-1, 4):
        assert bool(allows(b, h, q, k)) == case.may_read(int(b), int(q), int(k))


@given(cases())
def test_mask_mod_is_what_flex_attention_takes(case: Case) -> None:
    mask = create_mask(case.rule.mask_mod(case.t, case.s), case.rows, 1, case.t, case.s, device="cpu")
    assert torch.equal(mask, case.table)


@given(cases())
def test_reading_never_lies(case: Case) -> None:
    reading = case.rule.reading(case.t, case.s)
    if reading is Reading.FULL:
        assert case.table.all()
    if reading is Reading.CAUSAL:  # torch's flag starts its triangle at the first key, whatever t is
        assert torch.equal(case.table, torch.ones(case.t, case.s).tril().bool().expand_as(case.table))


@pytest.mark.parametrize(
    ("rule", "t", "s", "reading"),
    [
        (everything, 5, 5, Reading.FULL),
        (everything, 2, 5, Reading.FULL),
        (causal, 5, 5, Reading.CAUSAL),
        (causal, 1, 5, Reading.FULL),
        (causal, 2, 5, Reading.DENSE),
        (window(5), 5, 5, Reading.FULL),
        (window(4), 5, 5, Reading.DENSE),
        (causal & window(5), 5, 5, Reading.CAUSAL),
        (causal & window(5), 1, 5, Reading.FULL),
        (causal & window(4), 1, 5, Reading.DENSE),
        (real(torch.ones(1, 5, dtype=torch.bool)), 5, 5, Reading.DENSE),
        (causal & real(torch.ones(1, 5, dtype=torch.bool)), 1, 5, Reading.DENSE),
    ],
)
def test_a_kernel_is_told_no_more_than_it_needs(rule: Rule, t: int, s: int, reading: Reading) -> None:
    assert rule.reading(t, s) is reading


@given(cases())
def test_everything_changes_no_rule_it_joins(case: Case) -> None:
    rule = case.rule
    for joined in (everything & rule, rule & everything):
        assert torch.equal(dense(joined, case), case.table)
        assert joined.reading(case.t, case.s) is rule.reading(case.t, case.s)


def test_everything_and_everything_is_everything() -> None:
    assert (everything & everything).reading(3, 3) is Reading.FULL
    assert (everything & everything).dense(3, 3, CPU).all()
    assert (everything & causal) is causal
    assert (causal & everything) is causal


@given(cases(), st.integers(1, 6))
def test_joining_is_associative_and_has_no_order(case: Case, width: int) -> None:
    a, b, c = case.rule, window(width), causal
    left, right, turned = (a & b) & c, a & (b & c), c & b & a
    wanted = dense(a, case) & dense(b, case) & dense(c, case)
    for rule in (left, right, turned):
        assert torch.equal(dense(rule, case), wanted)
        assert rule.reading(case.t, case.s) is left.reading(case.t, case.s)


def test_joining_leaves_its_parts_as_they_were() -> None:
    pair = causal & window(2)
    before = pair.dense(4, 4, CPU).clone()
    pair & real(torch.zeros(1, 4, dtype=torch.bool))
    assert torch.equal(pair.dense(4, 4, CPU), before)


def test_window_zero_and_no_padding_hide_nothing() -> None:
    assert window(0) is everything
    assert real(None) is everything


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_causal_window_reads_from_i_minus_w_plus_1_to_i(length: int, width: int, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, length))  # cached decoding asks only for the last rows
    mask = (causal & window(width)).dense(new, length, CPU)[0, 0]
    for row, i in enumerate(range(length - new, length)):
        assert mask[row].nonzero().flatten().tolist() == list(range(max(0, i - width + 1), i + 1))


def test_a_window_alone_looks_both_ways() -> None:
    mask = window(2).dense(4, 4, CPU)[0, 0].int()
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_cross_attention_reads_every_real_source_token_even_when_the_target_is_longer() -> None:
    keep = torch.tensor([[True, True, False], [True, False, False]])
    t, s = 5, 3
    assert torch.equal(real(keep).dense(t, s, CPU), keep[:, None, None].expand(2, 1, t, s))
    assert everything.dense(t, s, CPU).all()
    mask = create_mask(real(keep).mask_mod(t, s), 2, 1, t, s, device="cpu")
    assert torch.equal(mask, keep[:, None, None].expand(2, 1, t, s))


def test_a_mask_is_made_once_a_pass_and_anew_for_other_sizes() -> None:
    rule = causal & window(3)
    first = rule.dense(6, 6, CPU)
    assert rule.dense(6, 6, CPU) is first
    for t, s in ((2, 6), (6, 6), (6, 7), (1, 1), (2, 6)):
        assert torch.equal(rule.dense(t, s, CPU), Case(t, s, 1, causal=True, width=3).table)
