"""A rule says the same in every language: dense tensor, function of indices, flag of a fused kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import CPU, Case, cases, dense, long_cases
from torch.nn.attention.flex_attention import create_mask

from triform.config import ModelConfig
from triform.nn import masks, pieces
from triform.nn.masks import (
    Causal,
    Piece,
    Rule,
    Together,
    causal,
    everything,
    reaches,
    real,
    whole,
    window,
    within,
)
from triform.nn.pieces import Hidden, cut, hidden, spans
from triform.nn.rows import Packed


def expanded(rule: Rule, case: Case) -> torch.Tensor:
    return dense(rule, case.t, case.s).expand(case.rows, 1, case.t, case.s)


@given(cases())
def test_dense_equals_a_loop_over_every_query_and_key(case: Case) -> None:
    mask = dense(case.rule, case.t, case.s)
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


def check_pieces(case: Case, most: int = 0) -> None:
    """Every query is in one piece, a piece says no more than is true, and nothing readable is left out."""
    table, left = case.table, case.table.clone()
    found = cut(case.rule, case.t, case.s, most=most)
    assert [q for piece in found for q in range(piece.q, piece.q + piece.t)] == list(range(case.t))
    for piece in found:
        part = (..., slice(piece.q, piece.q + piece.t), slice(piece.k, piece.k + piece.s))
        assert piece.place == case.s - case.t + piece.q
        assert not most or piece.t <= most
        how = hidden(case.rule, piece)
        if how is Hidden.NOTHING:
            assert table[part].all()
        if how is Hidden.FUTURE:  # torch's flag starts its triangle at the first key, whatever t is
            assert torch.equal(table[part], torch.ones(piece.t, piece.s).tril().bool().expand_as(table[part]))
        assert torch.equal(case.rule.dense(piece, CPU).expand_as(table[part]), table[part])
        left[part] = False
    assert not left.any()


@given(cases(), st.integers(0, 5))
def test_pieces_hold_all_that_may_be_read_and_say_truly_what_they_hide(case: Case, most: int) -> None:
    check_pieces(case, most)


@given(long_cases(), st.sampled_from([0, 1, 7, 64, 100]))
def test_long_texts_too_are_cut_without_loss(case: Case, most: int) -> None:
    check_pieces(case, most)


@given(cases())
def test_what_is_said_of_the_whole_is_true(case: Case) -> None:
    how = hidden(case.rule, whole(case.t, case.s))
    if case.lengths and len(case.lengths) > 1:
        return  # packed rows are asked about piece by piece
    if how is Hidden.NOTHING:
        assert case.table.all()
    if how is Hidden.FUTURE:
        assert torch.equal(case.table, torch.ones(case.t, case.s).tril().bool().expand_as(case.table))


@pytest.mark.parametrize(
    ("rule", "t", "s", "how"),
    [
        (everything, 5, 5, Hidden.NOTHING),
        (everything, 2, 5, Hidden.NOTHING),
        (causal, 5, 5, Hidden.FUTURE),
        (causal, 1, 5, Hidden.NOTHING),
        (causal, 2, 5, Hidden.SOMETHING),
        (window(5), 5, 5, Hidden.NOTHING),
        (window(4), 5, 5, Hidden.SOMETHING),
        (causal & window(5), 5, 5, Hidden.FUTURE),
        (causal & window(5), 1, 5, Hidden.NOTHING),
        (causal & window(4), 1, 5, Hidden.SOMETHING),
        (real(torch.ones(1, 5, dtype=torch.bool)), 5, 5, Hidden.SOMETHING),
        (causal & real(torch.ones(1, 5, dtype=torch.bool)), 1, 5, Hidden.SOMETHING),
    ],
)
def test_a_kernel_is_told_no_more_than_it_needs(rule: Rule, t: int, s: int, how: Hidden) -> None:
    assert hidden(rule, whole(t, s)) is how


@given(cases())
def test_everything_changes_no_rule_it_joins(case: Case) -> None:
    rule = case.rule
    for joined in (everything & rule, rule & everything):
        assert torch.equal(expanded(joined, case), case.table)
        assert cut(joined, case.t, case.s) == cut(rule, case.t, case.s)
        for piece in cut(rule, case.t, case.s):
            assert hidden(joined, piece) is hidden(rule, piece)


def test_everything_and_everything_is_everything() -> None:
    assert hidden(everything & everything, whole(3, 3)) is Hidden.NOTHING
    assert dense(everything & everything, 3, 3).all()
    assert (everything & causal) is causal
    assert (causal & everything) is causal


@given(cases(), st.integers(1, 6))
def test_joining_is_associative_and_has_no_order(case: Case, width: int) -> None:
    a, b, c = case.rule, window(width), causal
    left, right, turned = (a & b) & c, a & (b & c), c & b & a
    wanted = expanded(a, case) & expanded(b, case) & expanded(c, case)
    for rule in (left, right, turned):
        assert torch.equal(expanded(rule, case), wanted)
        assert (rule.span, rule.exact, rule.moves, rule.rows) == (left.span, left.exact, left.moves, left.rows)
        assert cut(rule, case.t, case.s) == cut(left, case.t, case.s)


def test_joining_leaves_its_parts_as_they_were() -> None:
    pair = causal & window(2)
    before = dense(pair, 4, 4).clone()
    pair & real(torch.zeros(1, 4, dtype=torch.bool))
    assert torch.equal(dense(pair, 4, 4), before)


def test_no_window_and_no_padding_hide_nothing() -> None:
    assert window(-1) is everything
    assert real(None) is everything


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_causal_window_reads_from_i_minus_w_plus_1_to_i(length: int, width: int, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, length))  # cached decoding asks only for the last rows
    mask = dense(causal & window(width), new, length)[0, 0]
    for row, i in enumerate(range(length - new, length)):
        assert mask[row].nonzero().flatten().tolist() == list(range(max(0, i - width + 1), i + 1))


def test_a_window_alone_looks_both_ways() -> None:
    mask = dense(window(2), 4, 4)[0, 0].int()
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_cross_attention_reads_every_real_source_token_even_when_the_target_is_longer() -> None:
    keep = torch.tensor([[True, True, False], [True, False, False]])
    t, s = 5, 3
    assert torch.equal(dense(real(keep), t, s), keep[:, None, None].expand(2, 1, t, s))
    assert dense(everything, t, s).all()
    mask = create_mask(real(keep).mask_mod(t, s), 2, 1, t, s, device="cpu")
    assert torch.equal(mask, keep[:, None, None].expand(2, 1, t, s))


def test_a_mask_is_made_once_a_pass_and_anew_for_other_sizes() -> None:
    rule = causal & window(3)
    first = dense(rule, 6, 6)
    assert dense(rule, 6, 6) is first
    for t, s in ((2, 6), (6, 6), (6, 7), (1, 1), (2, 6)):
        assert torch.equal(dense(rule, t, s), Case(t, s, 1, causal=True, width=3).table)


# ------------------------------------------------------------------------------------------ packed rows


def test_packed_rows_read_only_themselves() -> None:
    rule = Packed([2, 1, 3]).rule
    assert dense(rule, 6, 6)[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
    ]
    assert cut(rule, 6, 6) == [Piece(0, 2, 0, 2, 0), Piece(2, 1, 2, 1, 2), Piece(3, 3, 3, 3, 3)]
    assert [hidden(rule & causal, piece) for piece in cut(rule & causal, 6, 6)] == [
        *(Hidden.FUTURE, Hidden.NOTHING, Hidden.FUTURE)
    ]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_a_packed_target_reads_its_own_source_and_no_other(sizes: list[tuple[int, int]]) -> None:
    targets, sources = zip(*sizes, strict=True)
    rule = Packed(sources).read_by(Packed(targets))
    t, s = sum(targets), sum(sources)
    wanted = torch.block_diag(*(torch.ones(size) for size in sizes)).bool()
    assert torch.equal(dense(rule, t, s)[0, 0], wanted)
    assert torch.equal(create_mask(rule.mask_mod(t, s), 1, 1, t, s, device="cpu")[0, 0], wanted)
    left = wanted.clone()
    for piece in cut(rule, t, s):
        assert hidden(rule, piece) is Hidden.NOTHING
        left[piece.q : piece.q + piece.t, piece.k : piece.k + piece.s] = False
    assert not left.any()


def test_every_packed_row_needs_its_source() -> None:
    with pytest.raises(AssertionError, match="every row needs its source"):
        Together((1, 2), (3,))
    with pytest.raises(AssertionError, match="packed rows are read whole"):
        Packed([2, 3]).rule.stretches(4, 5)


# ------------------------------------------------------------------------------------------ pieces


def test_a_window_is_cut_into_pieces_of_the_keys_around_them() -> None:
    found = cut(causal & window(33), 256, 256)
    assert [(piece.q, piece.t, piece.k, piece.s) for piece in found] == [
        *((0, 64, 0, 64), (64, 64, 32, 96), (128, 64, 96, 96), (192, 64, 160, 96))
    ]
    assert cut(causal & window(33), 100, 100) == [whole(100, 100)]  # nothing to win
    assert cut(causal, 256, 256) == [whole(256, 256)]
    assert cut(causal & window(8), 1, 200) == [Piece(q=0, t=1, k=192, s=8, place=199)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=5))
def test_slices_taken_together_are_slices_and_their_gradients_add_up(places: list[tuple[int, int]]) -> None:
    x = torch.randn(2, 9, 3, requires_grad=True)
    factors = [torch.randn(2, length, 3) for _, length in places]
    parts = spans(x, places)
    for part, (start, length) in zip(parts, places, strict=True):
        assert torch.equal(part, x[:, start : start + length])
    sum((part * factor).sum() for part, factor in zip(parts, factors, strict=True)).backward()
    wanted = torch.zeros_like(x)
    for factor, (start, length) in zip(factors, places, strict=True):
        wanted[:, start : start + length] += factor
    torch.testing.assert_close(x.grad, wanted, rtol=0, atol=1e-12)


def test_a_slice_that_nothing_reads_gives_no_gradient() -> None:
    x = torch.randn(1, 5, 2, requires_grad=True)
    first, _ = spans(x, [(0, 2), (2, 3)])
    first.sum().backward()
    assert x.grad[0, :, 0].tolist() == [1, 1, 0, 0, 0]


# ------------------------------------------------------------------------------------------ what is remembered


@pytest.mark.parametrize("part", [everything, Packed([3, 3]).rule, real(torch.ones(2, 6).bool())])
def test_masks_made_in_inference_serve_training_afterwards(part: Rule) -> None:
    rule = causal & window(3) & part
    with torch.inference_mode():
        kept = dense(rule, 6, 6)
    assert dense(rule, 6, 6) is kept
    assert not kept.is_inference()
    x = torch.randn(2, 1, 6, 6, requires_grad=True)
    x.masked_fill(~kept, 0.0).square().sum().backward()
    assert torch.equal(x.grad != 0, kept.expand_as(x))


def test_a_mask_of_real_tokens_given_in_inference_can_be_read_in_training() -> None:
    with torch.inference_mode():
        rule = causal & real(torch.tensor([[True, False, True]]))
        dense(rule, 3, 3)
    x = torch.randn(1, 1, 3, 3, requires_grad=True)
    x.masked_fill(~dense(rule, 3, 3), 0.0).sum().backward()
    assert x.grad[0, 0].tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize("part", [everything, real(torch.ones(2, 400).bool())])
def test_a_rule_does_not_remember_without_end(part: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 5_000
    monkeypatch.setattr(masks, "MOST_KEPT", most)
    rule = causal & window(20) & part
    largest = 0
    for t in range(1, 120):
        largest = max(largest, dense(rule, t, t + 3).numel())
        assert sum(mask.numel() for mask in rule._masks.values()) <= most + largest


def test_pieces_alike_share_one_mask_where_only_distance_counts() -> None:
    rule = causal & window(16)
    for piece in cut(rule, 640, 640):
        rule.dense(piece, CPU)
    assert len(rule._masks) == 2  # the first, which has no past, and all others


def test_ways_of_cutting_are_remembered_but_not_without_end() -> None:
    rule = causal & window(16)
    first = cut(rule, 200, 200)
    assert cut(rule, 200, 200) is first
    for t in range(1, 300):
        cut(rule, t, 300)
        assert len(rule.pieces) <= pieces.MOST_KEPT
    assert cut(rule, 200, 200) == first


def test_a_gpu_takes_longer_pieces() -> None:
    rule = causal & window(16)
    assert len(cut(rule, 4096, 4096, gpu=True)) < len(cut(rule, 4096, 4096))
    for gpu in (True, False):
        found = cut(rule, 4096, 4096, gpu=gpu)
        assert sum(piece.t for piece in found) == 4096
        assert all(piece.k <= max(0, piece.place - 15) for piece in found)


def test_what_a_layer_remembers_of_its_reach_outlives_a_batch_without_padding() -> None:
    reach = reaches(ModelConfig(d_model=8, n_heads=2, n_layers=2, window=3), causal=True)
    assert reach[0] is reach[1]
    assert within(reach, everything) == list(reach)
    first, second = within(reach, real(torch.ones(1, 4, dtype=torch.bool)))
    assert first is second is not reach[0]


def test_rules_of_two_models_share_no_memory() -> None:
    config = ModelConfig(d_model=8, n_heads=2, n_layers=1)
    first, second = (reaches(config, causal=True)[0] for _ in range(2))
    first.dense(whole(9, 9), CPU)
    assert not second._masks
    assert first is not causal


def test_a_mask_larger_than_all_that_may_be_kept_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.nn.masks.MOST_KEPT", 50)
    rule = Causal()
    for t in (5, 4, 6, 9, 3):
        assert torch.equal(rule.dense(whole(t, t), CPU)[0, 0], torch.ones(t, t).tril().bool())
        assert sum(mask.numel() for mask in rule._masks.values()) <= 50
