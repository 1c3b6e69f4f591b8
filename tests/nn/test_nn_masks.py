"""A rule says the same in every language: dense tensor, function of indices, flag of a fused kernel."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_cases import CPU, MaskCase, dense, long_mask_cases, short_mask_cases
from torch.nn.attention.flex_attention import create_mask

from triform.config import ModelConfig
from triform.nn.kernels import sdpa, tiling
from triform.nn.kernels.flex import mask_mod
from triform.nn.kernels.packing import PackedLayout, PackedMask
from triform.nn.kernels.sdpa import MaskKind, Tile, dense_mask, full_tile, mask_cache, mask_info, mask_kind
from triform.nn.kernels.tiling import mask_regions, multi_slice
from triform.nn.layouts import PaddedLayout
from triform.nn.masks import (
    AttentionMask,
    CausalMask,
    PaddingMask,
    build_layer_masks,
    causal_mask,
    combine_masks,
    full_mask,
    window_mask,
)

split_into_tiles = partial(tiling.split_into_tiles, min_len=sdpa.MIN_TILE_CPU)


def expanded_mask(mask: AttentionMask, case: MaskCase) -> torch.Tensor:
    return dense(mask, case.t, case.s).expand(case.rows, 1, case.t, case.s)


@given(short_mask_cases())
def test_dense_equals_a_loop_over_every_query_and_key(case: MaskCase) -> None:
    mask = dense(case.mask, case.t, case.s)
    assert mask.dtype == torch.bool
    assert mask.shape[0] == (case.rows if case.keep else 1)
    assert torch.equal(mask.expand(case.rows, 1, case.t, case.s), case.dense_mask)


@given(short_mask_cases(max_len=5))
def test_mask_mod_agrees_with_dense_index_by_index(case: MaskCase) -> None:
    allows = mask_mod(case.mask, case.t, case.s)
    for b, h, q, k in torch.cartesian_prod(*map(torch.arange, (case.rows, 2, case.t, case.s))).view(-1, 4):
        assert bool(allows(b, h, q, k)) == case.may_read(int(b), int(q), int(k))


@given(short_mask_cases())
def test_mask_mod_is_what_flex_attention_takes(case: MaskCase) -> None:
    mask = create_mask(mask_mod(case.mask, case.t, case.s), case.rows, 1, case.t, case.s, device="cpu")
    assert torch.equal(mask, case.dense_mask)


def check_tiles(case: MaskCase, max_queries: int = 0) -> None:
    """Every query is in one piece, a piece says no more than is true, and nothing readable is left out."""
    expected, uncovered = case.dense_mask, case.dense_mask.clone()
    tiles = split_into_tiles(case.mask, case.t, case.s, max_queries=max_queries)
    assert [q for tile in tiles for q in range(tile.q_start, tile.q_start + tile.q_len)] == list(range(case.t))
    for tile in tiles:
        region = (
            ...,
            slice(tile.q_start, tile.q_start + tile.q_len),
            slice(tile.k_start, tile.k_start + tile.k_len),
        )
        assert tile.q_position == case.s - case.t + tile.q_start
        assert not max_queries or tile.q_len <= max_queries
        kind = mask_kind(mask_info(case.mask), tile)
        if kind is MaskKind.NONE:
            assert expected[region].all()
        if kind is MaskKind.CAUSAL:  # torch's flag starts its triangle at the first key, whatever t is
            assert torch.equal(
                expected[region],
                torch.ones(tile.q_len, tile.k_len).tril().bool().expand_as(expected[region]),
            )
        assert torch.equal(dense_mask(case.mask, tile, CPU).expand_as(expected[region]), expected[region])
        uncovered[region] = False
    assert not uncovered.any()


@given(short_mask_cases(), st.integers(0, 5))
def test_pieces_hold_all_that_may_be_read_and_say_truly_what_they_hide(case: MaskCase, max_hidden: int) -> None:
    check_tiles(case, max_hidden)


@given(long_mask_cases(), st.sampled_from([0, 1, 7, 64, 100]))
def test_long_texts_too_are_cut_without_loss(case: MaskCase, max_hidden: int) -> None:
    check_tiles(case, max_hidden)


@given(short_mask_cases())
def test_what_is_said_of_the_whole_is_true(case: MaskCase) -> None:
    kind = mask_kind(mask_info(case.mask), full_tile(case.t, case.s))
    if case.lengths and len(case.lengths) > 1:
        return  # packed rows are asked about piece by piece
    if kind is MaskKind.NONE:
        assert case.dense_mask.all()
    if kind is MaskKind.CAUSAL:
        assert torch.equal(case.dense_mask, torch.ones(case.t, case.s).tril().bool().expand_as(case.dense_mask))


@pytest.mark.parametrize(
    ("mask", "t", "s", "expected_kind"),
    [
        (full_mask, 5, 5, MaskKind.NONE),
        (full_mask, 2, 5, MaskKind.NONE),
        (causal_mask, 5, 5, MaskKind.CAUSAL),
        (causal_mask, 1, 5, MaskKind.NONE),
        (causal_mask, 2, 5, MaskKind.DENSE),
        (window_mask(5), 5, 5, MaskKind.NONE),
        (window_mask(4), 5, 5, MaskKind.DENSE),
        (causal_mask & window_mask(5), 5, 5, MaskKind.CAUSAL),
        (causal_mask & window_mask(5), 1, 5, MaskKind.NONE),
        (causal_mask & window_mask(4), 1, 5, MaskKind.DENSE),
        (PaddingMask(torch.ones(1, 5, dtype=torch.bool)), 5, 5, MaskKind.DENSE),
        (causal_mask & PaddingMask(torch.ones(1, 5, dtype=torch.bool)), 1, 5, MaskKind.DENSE),
    ],
)
def test_a_kernel_is_told_no_more_than_it_needs(
    mask: AttentionMask, t: int, s: int, expected_kind: MaskKind
) -> None:
    assert mask_kind(mask_info(mask), full_tile(t, s)) is expected_kind


@given(short_mask_cases())
def test_everything_changes_no_rule_it_joins(case: MaskCase) -> None:
    mask = case.mask
    for joined in (full_mask & mask, mask & full_mask):
        assert torch.equal(expanded_mask(joined, case), case.dense_mask)
        assert split_into_tiles(joined, case.t, case.s) == split_into_tiles(mask, case.t, case.s)
        for tile in split_into_tiles(mask, case.t, case.s):
            assert mask_kind(mask_info(joined), tile) is mask_kind(mask_info(mask), tile)


def test_everything_and_everything_is_everything() -> None:
    assert mask_kind(mask_info(full_mask & full_mask), full_tile(3, 3)) is MaskKind.NONE
    assert dense(full_mask & full_mask, 3, 3).all()
    assert (full_mask & causal_mask) is causal_mask
    assert (causal_mask & full_mask) is causal_mask


@given(short_mask_cases(), st.integers(1, 6))
def test_joining_is_associative_and_has_no_order(case: MaskCase, width: int) -> None:
    a, b, c = case.mask, window_mask(width), causal_mask
    left, right, reversed_order = (a & b) & c, a & (b & c), c & b & a
    expected = expanded_mask(a, case) & expanded_mask(b, case) & expanded_mask(c, case)
    for mask in (left, right, reversed_order):
        assert torch.equal(expanded_mask(mask, case), expected)
        assert (mask_info(mask), mask.batch_size) == (mask_info(left), left.batch_size)
        assert split_into_tiles(mask, case.t, case.s) == split_into_tiles(left, case.t, case.s)


def test_joining_leaves_its_parts_as_they_were() -> None:
    combined = causal_mask & window_mask(2)
    before = dense(combined, 4, 4).clone()
    combined & PaddingMask(torch.zeros(1, 4, dtype=torch.bool))
    assert torch.equal(dense(combined, 4, 4), before)


def test_no_window_and_no_padding_hide_nothing() -> None:
    assert window_mask(-1) is full_mask
    assert PaddedLayout(None).mask is full_mask


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_causal_window_reads_from_i_minus_w_plus_1_to_i(length: int, width: int, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, length))  # cached decoding asks only for the last rows
    mask = dense(causal_mask & window_mask(width), new, length)[0, 0]
    for row, i in enumerate(range(length - new, length)):
        assert mask[row].nonzero().flatten().tolist() == list(range(max(0, i - width + 1), i + 1))


def test_a_window_alone_looks_both_ways() -> None:
    mask = dense(window_mask(2), 4, 4)[0, 0].int()
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_cross_attention_reads_every_real_source_token_even_when_the_target_is_longer() -> None:
    keep = torch.tensor([[True, True, False], [True, False, False]])
    t, s = 5, 3
    assert torch.equal(dense(PaddingMask(keep), t, s), keep[:, None, None].expand(2, 1, t, s))
    assert dense(full_mask, t, s).all()
    mask = create_mask(mask_mod(PaddingMask(keep), t, s), 2, 1, t, s, device="cpu")
    assert torch.equal(mask, keep[:, None, None].expand(2, 1, t, s))


def test_a_mask_is_made_once_a_pass_and_anew_for_other_sizes() -> None:
    mask = causal_mask & window_mask(3)
    first = dense(mask, 6, 6)
    assert dense(mask, 6, 6) is first
    for t, s in ((2, 6), (6, 6), (6, 7), (1, 1), (2, 6)):
        assert torch.equal(dense(mask, t, s), MaskCase(t, s, 1, causal=True, width=3).dense_mask)


# ------------------------------------------------------------------------------------------ packed rows


def test_packed_rows_read_only_themselves() -> None:
    mask = PackedLayout([2, 1, 3]).mask
    assert dense(mask, 6, 6)[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
    ]
    assert split_into_tiles(mask, 6, 6) == [Tile(0, 2, 0, 2, 0), Tile(2, 1, 2, 1, 2), Tile(3, 3, 3, 3, 3)]
    assert [
        mask_kind(mask_info(mask & causal_mask), tile) for tile in split_into_tiles(mask & causal_mask, 6, 6)
    ] == [*(MaskKind.CAUSAL, MaskKind.NONE, MaskKind.CAUSAL)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_a_packed_target_reads_its_own_source_and_no_other(sizes: list[tuple[int, int]]) -> None:
    targets, sources = zip(*sizes, strict=True)
    mask = PackedLayout(sources).cross_attention_mask(PackedLayout(targets))
    t, s = sum(targets), sum(sources)
    expected = torch.block_diag(*(torch.ones(size) for size in sizes)).bool()
    assert torch.equal(dense(mask, t, s)[0, 0], expected)
    assert torch.equal(create_mask(mask_mod(mask, t, s), 1, 1, t, s, device="cpu")[0, 0], expected)
    uncovered = expected.clone()
    for tile in split_into_tiles(mask, t, s):
        assert mask_kind(mask_info(mask), tile) is MaskKind.NONE
        uncovered[tile.q_start : tile.q_start + tile.q_len, tile.k_start : tile.k_start + tile.k_len] = False
    assert not uncovered.any()


def test_every_packed_row_needs_its_source() -> None:
    with pytest.raises(AssertionError, match="the numbers of packed sequences and of their sources differ"):
        PackedMask((1, 2), (3,))
    with pytest.raises(AssertionError, match="packed sequences must be read as a whole"):
        mask_regions(PackedLayout([2, 3]).mask, 4, 5)


# ------------------------------------------------------------------------------------------ pieces


def test_a_window_is_cut_into_pieces_of_the_keys_around_them() -> None:
    tiles = split_into_tiles(causal_mask & window_mask(33), 256, 256)
    assert [(tile.q_start, tile.q_len, tile.k_start, tile.k_len) for tile in tiles] == [
        *((0, 64, 0, 64), (64, 64, 32, 96), (128, 64, 96, 96), (192, 64, 160, 96))
    ]
    assert split_into_tiles(causal_mask & window_mask(33), 100, 100) == [full_tile(100, 100)]  # nothing to win
    assert split_into_tiles(causal_mask, 256, 256) == [full_tile(256, 256)]
    assert split_into_tiles(causal_mask & window_mask(8), 1, 200) == [
        Tile(q_start=0, q_len=1, k_start=192, k_len=8, q_position=199)
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=5))
def test_slices_taken_together_are_slices_and_their_gradients_add_up(slices: list[tuple[int, int]]) -> None:
    x = torch.randn(2, 9, 3, requires_grad=True)
    factors = [torch.randn(2, length, 3) for _, length in slices]
    parts = multi_slice(x, slices)
    for part, (start, length) in zip(parts, slices, strict=True):
        assert torch.equal(part, x[:, start : start + length])
    sum((part * factor).sum() for part, factor in zip(parts, factors, strict=True)).backward()
    expected = torch.zeros_like(x)
    for factor, (start, length) in zip(factors, slices, strict=True):
        expected[:, start : start + length] += factor
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=1e-12)


def test_a_slice_that_nothing_reads_gives_no_gradient() -> None:
    x = torch.randn(1, 5, 2, requires_grad=True)
    first, _ = multi_slice(x, [(0, 2), (2, 3)])
    first.sum().backward()
    assert x.grad[0, :, 0].tolist() == [1, 1, 0, 0, 0]


# ------------------------------------------------------------------------------------------ what is remembered


@pytest.mark.parametrize("part", [full_mask, PackedLayout([3, 3]).mask, PaddingMask(torch.ones(2, 6).bool())])
def test_masks_made_in_inference_serve_training_afterwards(part: AttentionMask) -> None:
    mask = causal_mask & window_mask(3) & part
    with torch.inference_mode():
        cached = dense(mask, 6, 6)
    assert dense(mask, 6, 6) is cached
    assert not cached.is_inference()
    x = torch.randn(2, 1, 6, 6, requires_grad=True)
    x.masked_fill(~cached, 0.0).square().sum().backward()
    assert torch.equal(x.grad != 0, cached.expand_as(x))


def test_a_mask_of_real_tokens_given_in_inference_can_be_read_in_training() -> None:
    with torch.inference_mode():
        mask = causal_mask & PaddingMask(torch.tensor([[True, False, True]]))
        dense(mask, 3, 3)
    x = torch.randn(1, 1, 3, 3, requires_grad=True)
    x.masked_fill(~dense(mask, 3, 3), 0.0).sum().backward()
    assert x.grad[0, 0].tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize("part", [full_mask, PaddingMask(torch.ones(2, 400).bool())])
def test_a_rule_does_not_remember_without_end(part: AttentionMask, monkeypatch: pytest.MonkeyPatch) -> None:
    max_entries = 5_000
    monkeypatch.setattr(sdpa, "MAX_CACHED_ENTRIES", max_entries)
    mask = causal_mask & window_mask(20) & part
    largest = 0
    for t in range(1, 120):
        largest = max(largest, dense(mask, t, t + 3).numel())
        assert sum(keep.numel() for keep in mask_cache(mask).dense_masks.values()) <= max_entries + largest


def test_pieces_alike_share_one_mask_where_only_distance_counts() -> None:
    mask = causal_mask & window_mask(16)
    for tile in split_into_tiles(mask, 640, 640):
        dense_mask(mask, tile, CPU)
    assert len(mask_cache(mask).dense_masks) == 2  # the first, which has no past, and all others


def test_ways_of_cutting_are_remembered_but_not_without_end() -> None:
    mask = causal_mask & window_mask(16)
    first = split_into_tiles(mask, 200, 200)
    assert split_into_tiles(mask, 200, 200) is first
    for t in range(1, 300):
        split_into_tiles(mask, t, 300)
        assert len(mask_cache(mask).tilings) <= tiling.MAX_CACHED_TILINGS
    assert split_into_tiles(mask, 200, 200) == first


def test_a_gpu_takes_longer_pieces() -> None:
    mask = causal_mask & window_mask(16)
    assert len(split_into_tiles(mask, 4096, 4096, min_len=sdpa.MIN_TILE_GPU)) < len(
        split_into_tiles(mask, 4096, 4096)
    )
    for min_len in (sdpa.MIN_TILE_GPU, sdpa.MIN_TILE_CPU):
        tiles = split_into_tiles(mask, 4096, 4096, min_len=min_len)
        assert sum(tile.q_len for tile in tiles) == 4096
        assert all(tile.k_start <= max(0, tile.q_position - 15) for tile in tiles)


def test_what_a_layer_remembers_of_its_reach_outlives_a_batch_without_padding() -> None:
    layer_masks = build_layer_masks(ModelConfig(d_model=8, n_heads=2, n_layers=2, window=3), causal=True)
    assert layer_masks[0] is layer_masks[1]
    assert combine_masks(layer_masks, full_mask) == list(layer_masks)
    first, second = combine_masks(layer_masks, PaddingMask(torch.ones(1, 4, dtype=torch.bool)))
    assert first is second is not layer_masks[0]


def test_rules_of_two_models_share_no_memory() -> None:
    config = ModelConfig(d_model=8, n_heads=2, n_layers=1)
    first, second = (build_layer_masks(config, causal=True)[0] for _ in range(2))
    dense_mask(first, full_tile(9, 9), CPU)
    assert not mask_cache(second).dense_masks
    assert first is not causal_mask


def test_a_mask_larger_than_all_that_may_be_kept_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.nn.kernels.sdpa.MAX_CACHED_ENTRIES", 50)
    mask = CausalMask()
    for t in (5, 4, 6, 9, 3):
        assert torch.equal(dense_mask(mask, full_tile(t, t), CPU)[0, 0], torch.ones(t, t).tril().bool())
        assert sum(keep.numel() for keep in mask_cache(mask).dense_masks.values()) <= 50
