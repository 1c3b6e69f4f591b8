"""Which kernel is taken, and what the compiled and the flash kernel are told, counted by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_cases import MaskCase, dense
from score_cases import HEADS, RELATIVE_POSITIONS, build_score_fn, random_qkv, run_kernel
from torch import Tensor

from triform.nn.attention import naive_attention
from triform.nn.kernels import dispatch, flex
from triform.nn.kernels import varlen as flash
from triform.nn.kernels.dispatch import CHUNKED, FLEX, SDPA, SDPA_TILED, VARLEN, KernelChoice, select_kernel
from triform.nn.kernels.flex import BLOCK_SIZE, BlockTable, build_block_table
from triform.nn.kernels.packing import PackedLayout
from triform.nn.kernels.sdpa import mask_info, sdpa_attention
from triform.nn.kernels.tiling import mask_regions, tiled_sdpa_attention
from triform.nn.masks import AttentionMask, PaddingMask, causal_mask, full_mask, window_mask

DOT_SCORE = build_score_fn("scaled_dot", "none", causal=True, width=16)
LONG_LEN = 2048
KEEP = torch.ones(2, LONG_LEN, dtype=torch.bool)
PACKED = PackedLayout([512] * 4).mask
FUSED_KERNELS = (sdpa_attention, tiled_sdpa_attention)


def fake_tensor(
    t: int = LONG_LEN, *, cuda: bool = True, width: int = 64, dtype: torch.dtype = torch.float32
) -> Any:
    """A tensor as far as choosing goes: where it is, how large, and of what."""
    device = torch.device("cuda" if cuda else "cpu")
    return SimpleNamespace(is_cuda=cuda, device=device, shape=(2, 4, t, width), dtype=dtype)


@pytest.fixture(autouse=True)
def _fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "find_spec", lambda name: name)
    monkeypatch.setattr(flex, "_compiled_shapes", set())
    monkeypatch.setattr(flash, "_is_available", lambda: True)


# ------------------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine", "additive"])
@pytest.mark.parametrize("position", RELATIVE_POSITIONS)
@pytest.mark.parametrize("cuda", [True, False])
def test_what_is_no_dot_product_takes_the_formula(score: str, position: str, cuda: bool) -> None:
    if score == "additive" and position in ("rotary", "relative"):
        return
    q = fake_tensor(cuda=cuda)
    actual = select_kernel(q, q, causal_mask & window_mask(64), build_score_fn(score, position, causal=True), 0.0)
    if score == "additive" or position == "relative":
        assert actual is CHUNKED
    else:
        assert actual is (FLEX if cuda else SDPA_TILED)


@pytest.mark.parametrize(
    ("mask", "t", "s", "expected"),
    [
        (causal_mask & window_mask(64), LONG_LEN, LONG_LEN, FLEX),
        (window_mask(64), LONG_LEN, LONG_LEN, FLEX),
        (causal_mask & window_mask(64) & PaddingMask(KEEP), LONG_LEN, LONG_LEN, FLEX),
        (causal_mask & window_mask(512), LONG_LEN, LONG_LEN, FLEX),  # a quarter of the text
        (window_mask(256), LONG_LEN, LONG_LEN, FLEX),
        (causal_mask & window_mask(64), 1024, 1024, FLEX),
        (causal_mask & window_mask(513), LONG_LEN, LONG_LEN, SDPA),  # too wide to be worth it
        (window_mask(257), LONG_LEN, LONG_LEN, SDPA),
        (causal_mask & window_mask(64), 896, 896, SDPA),  # too short
        (causal_mask & window_mask(64), 1, LONG_LEN, SDPA),  # one new token
        (causal_mask & window_mask(64), LONG_LEN - 1, LONG_LEN - 1, SDPA),  # no whole blocks
        (causal_mask & window_mask(64), 1024, LONG_LEN - 1, SDPA),
        (causal_mask, LONG_LEN, LONG_LEN, SDPA),
        (full_mask, LONG_LEN, LONG_LEN, SDPA),
        (causal_mask & PaddingMask(KEEP), LONG_LEN, LONG_LEN, SDPA),
        (causal_mask & PACKED, LONG_LEN, LONG_LEN, SDPA),
        (PACKED, LONG_LEN, LONG_LEN, SDPA),
    ],
)
def test_on_cuda_a_long_text_in_a_narrow_window_is_compiled(
    mask: AttentionMask, t: int, s: int, expected: KernelChoice
) -> None:
    actual = select_kernel(fake_tensor(t), fake_tensor(s), mask, DOT_SCORE, 0.0)
    assert actual.kernel in (FUSED_KERNELS if expected is SDPA else (expected.kernel,))
    assert (
        select_kernel(fake_tensor(t, cuda=False), fake_tensor(s, cuda=False), mask, DOT_SCORE, 0.0).kernel
        in FUSED_KERNELS
    )


def test_pieces_are_called_so_where_there_are_any() -> None:
    near, far = (fake_tensor(t, cuda=False) for t in (64, LONG_LEN))
    assert select_kernel(near, near, causal_mask & window_mask(16), DOT_SCORE, 0.0) is SDPA
    assert select_kernel(far, far, causal_mask & window_mask(16), DOT_SCORE, 0.0) is SDPA_TILED
    assert select_kernel(far, far, causal_mask & PACKED, DOT_SCORE, 0.0) is SDPA_TILED
    assert select_kernel(far, far, causal_mask, DOT_SCORE, 0.0) is SDPA
    assert len({selected.name for selected in (CHUNKED, VARLEN, FLEX, SDPA, SDPA_TILED)}) == 5


@pytest.mark.parametrize(
    ("q", "k", "dropout", "triton"),
    [
        (fake_tensor(), fake_tensor(), 0.1, True),
        (fake_tensor(LONG_LEN - 1), fake_tensor(), 0.0, True),
        (fake_tensor(), fake_tensor(LONG_LEN + 1), 0.0, True),
        (fake_tensor(width=15), fake_tensor(width=15), 0.0, True),
        (fake_tensor(), fake_tensor(), 0.0, False),
    ],
    ids=["dropout", "part of a block of queries", "part of a block of keys", "small heads", "no triton"],
)
def test_what_flex_attention_cannot_do_is_fused(
    q: Any, k: Any, dropout: float, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = causal_mask & window_mask(64)
    assert flex.is_supported(fake_tensor(), fake_tensor(), mask, DOT_SCORE, 0.0)
    if not triton:
        monkeypatch.setattr(flex, "find_spec", lambda name: None)
    assert not flex.is_supported(q, k, mask, DOT_SCORE, dropout)
    assert select_kernel(q, k, mask, DOT_SCORE, dropout).kernel in FUSED_KERNELS


def test_no_more_shapes_are_compiled_than_torch_will_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "MAX_COMPILED_SHAPES", 3)
    mask, lengths = causal_mask & window_mask(64), (1024, 1152, 1280, 1408, 1536)
    for _ in range(2):
        selected = [select_kernel(fake_tensor(t), fake_tensor(t), mask, DOT_SCORE, 0.0).kernel for t in lengths]
        assert selected[:3] == [flex.flex_attention_kernel] * 3
        assert set(selected[3:]) <= set(FUSED_KERNELS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "mask", [PACKED, causal_mask & PACKED, causal_mask & window_mask(64) & PACKED, window_mask(64) & PACKED]
)
def test_packed_rows_in_half_precision_take_flash(mask: AttentionMask, dtype: torch.dtype) -> None:
    q = fake_tensor(dtype=dtype)
    assert select_kernel(q, q, mask, DOT_SCORE, 0.0) is VARLEN
    assert select_kernel(q, q, mask, build_score_fn("cosine", "rotary", causal=True), 0.0) is VARLEN


@pytest.mark.parametrize(
    ("q", "mask", "positions", "dropout"),
    [
        (fake_tensor(), causal_mask & PACKED, "none", 0.0),
        (fake_tensor(dtype=torch.bfloat16), causal_mask & PACKED, "none", 0.1),
        (fake_tensor(dtype=torch.bfloat16), causal_mask & PACKED, "t5", 0.0),
        (fake_tensor(dtype=torch.bfloat16), causal_mask & PACKED, "alibi", 0.0),
        (fake_tensor(dtype=torch.bfloat16, width=12), causal_mask & PACKED, "none", 0.0),
        (fake_tensor(dtype=torch.bfloat16), PACKED & PaddingMask(KEEP[:1]), "none", 0.0),
        (fake_tensor(dtype=torch.bfloat16, width=512), causal_mask & PACKED, "none", 0.0),
    ],
    ids=["single precision", "dropout", "t5", "alibi", "odd heads", "padding", "large heads"],
)
def test_what_flash_cannot_do_is_fused(q: Any, mask: AttentionMask, positions: str, dropout: float) -> None:
    assert (
        select_kernel(q, q, mask, build_score_fn("scaled_dot", positions, causal=True), dropout).kernel
        in FUSED_KERNELS
    )


def test_an_older_torch_without_flash_for_packed_rows_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_is_available", lambda: False)
    q = fake_tensor(dtype=torch.bfloat16)
    assert select_kernel(q, q, causal_mask & PACKED, DOT_SCORE, 0.0) is SDPA_TILED


def test_every_choice_says_why() -> None:
    for selected in (CHUNKED, VARLEN, FLEX, SDPA, SDPA_TILED):
        assert selected.reason


def test_automatic_calls_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def kernel(*arguments: Any) -> str:
        calls.append(arguments)
        return "answer"

    monkeypatch.setattr(dispatch, "select_kernel", lambda *arguments: KernelChoice("mine", kernel, "a test"))
    assert dispatch.dispatch_attention("q", "k", "v", causal_mask, DOT_SCORE, 0.25) == "answer"
    assert calls == [("q", "k", "v", causal_mask, DOT_SCORE, 0.25)]


def test_the_meta_device_is_no_cuda() -> None:
    q = torch.empty(1, 4, LONG_LEN, 16, device="meta")
    assert select_kernel(q, q, causal_mask & window_mask(64), DOT_SCORE, 0.0).kernel in FUSED_KERNELS
    assert dispatch.dispatch_attention(q, q, q, causal_mask & window_mask(64), DOT_SCORE, 0.0).shape == q.shape


# ------------------------------------------------------------------------------------------ rows for flash


def varlen_reference(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, **options: Any
) -> Tensor:
    """What torch's attention over rows of unequal length does with the same arguments: (N, H, Dh) each."""
    parts = []
    row_bounds = zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True)
    for (start, end), (first, last) in row_bounds:
        t, s = end - start, last - first
        assert t <= max_q
        assert s <= max_k
        scores = torch.einsum("ihd,jhd->hij", q[start:end], k[first:last]) * options["scale"]
        distance = torch.arange(s) - torch.arange(s - t, s)[:, None]  # the last query stands at the last key
        before, after = (math.inf if limit < 0 else limit for limit in options["window_size"])
        scores = scores.masked_fill((distance < -before) | (distance > after), -math.inf)
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v[first:last]))
    assert end == len(q)
    assert last == len(k)
    return torch.cat(parts)


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine"])
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize(("causes", "width"), [(True, 0), (False, 0), (True, 3), (False, 2)])
def test_flash_is_given_what_the_formula_asks(
    score: str, kv_heads: int, causes: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", varlen_reference)
    case = MaskCase(13, 13, 2, causes, width, lengths=(5, 1, 7))
    score_fn, qkv = build_score_fn(score, "none", causal=causes), random_qkv(2, 13, 13, kv_heads)
    actual, expected = (
        run_kernel(kernel, qkv, case.mask, score_fn) for kernel in (flash.varlen_attention, naive_attention)
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_flash_of_packed_targets_over_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", varlen_reference)
    mask = PackedLayout([2, 6, 1]).cross_attention_mask(PackedLayout([4, 1, 5]))
    score_fn, qkv = build_score_fn("scaled_dot", "none", causal=False), random_qkv(1, 10, 9, 2)
    actual, expected = (kernel(*qkv, mask, score_fn, 0.0) for kernel in (flash.varlen_attention, naive_attention))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------ blocks


def reference_blocks(mask: AttentionMask, t: int, s: int) -> tuple[torch.Tensor, torch.Tensor]:
    dense_mask = dense(mask, t, s)[0, 0].view(t // BLOCK_SIZE, BLOCK_SIZE, s // BLOCK_SIZE, BLOCK_SIZE)
    return dense_mask.any(3).any(1), dense_mask.all(3).all(1)


@st.composite
def block_cases(draw: st.DrawFn) -> MaskCase:
    s = BLOCK_SIZE * draw(st.integers(1, 5))
    t = draw(st.sampled_from([s, s, BLOCK_SIZE]))
    edges = [1, 2, 127, 128, 129, 130, 255, 256, 257, 258, 700]
    width = draw(st.one_of(st.just(0), st.sampled_from(edges), st.integers(1, s)))
    lengths: tuple[int, ...] = ()
    if t == s and draw(st.booleans()):
        edge_positions = st.sampled_from([position for position in (1, 127, 128, 129, 256, 300) if position < s])
        boundaries = draw(st.sets(st.one_of(st.integers(1, s - 1), edge_positions), max_size=8))
        ends = [0, *sorted(boundaries), s]
        lengths = tuple(b - a for a, b in pairwise(ends))
    return MaskCase(t, s, 1, draw(st.booleans()), width, lengths=lengths)


def block_table(mask: AttentionMask, t: int, s: int) -> BlockTable:
    info = mask_info(mask)
    return build_block_table(info.span, mask_regions(mask, t, s), t, s, span_is_exact=info.span_is_exact)


@given(block_cases())
def test_blocks_are_those_that_hold_something_and_those_that_hold_all(case: MaskCase) -> None:
    any_visible, all_visible = reference_blocks(case.mask, case.t, case.s)
    actual = block_table(case.mask, case.t, case.s)
    assert torch.equal(actual.any_visible, any_visible)
    assert torch.equal(actual.all_visible, all_visible)


@given(block_cases(), st.integers(0, 9))
def test_where_padding_may_hide_more_no_block_is_called_whole(case: MaskCase, seed: int) -> None:
    keep = torch.rand(1, case.s, generator=torch.Generator().manual_seed(seed)) < 0.5
    actual = block_table(case.mask & PaddingMask(keep), case.t, case.s)
    assert not actual.all_visible.any()
    assert torch.equal(actual.any_visible, reference_blocks(case.mask, case.t, case.s)[0])


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=6))
def test_blocks_of_packed_targets_over_their_sources(sizes: list[tuple[int, int]]) -> None:
    targets, sources = ([*lengths] for lengths in zip(*sizes, strict=True))
    targets.append(BLOCK_SIZE - sum(targets) % BLOCK_SIZE)
    sources.append(BLOCK_SIZE - sum(sources) % BLOCK_SIZE)
    mask, t, s = PackedLayout(sources).cross_attention_mask(PackedLayout(targets)), sum(targets), sum(sources)
    any_visible, all_visible = reference_blocks(mask, t, s)
    actual = block_table(mask, t, s)
    assert torch.equal(actual.any_visible, any_visible)
    assert torch.equal(actual.all_visible, all_visible)


@given(block_cases())
def test_the_lists_given_to_flex_attention_name_each_block_once(case: MaskCase) -> None:
    block_mask = flex._block_mask(case.mask, case.t, case.s, torch.device("cpu"))
    any_visible, all_visible = reference_blocks(case.mask, case.t, case.s)
    for counts, indices, visible in (
        (block_mask.kv_num_blocks, block_mask.kv_indices, any_visible & ~all_visible),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, all_visible),
    ):
        for count, row, expected in zip(counts[0, 0], indices[0, 0], visible, strict=True):
            assert sorted(row[:count].tolist()) == expected.nonzero().flatten().tolist()


def test_rules_of_one_span_share_their_lists_of_blocks_whatever_padding_they_hide() -> None:
    cpu = torch.device("cpu")
    first, second = (
        flex._block_mask(causal_mask & window_mask(40) & PaddingMask(KEEP), 256, 256, cpu) for _ in range(2)
    )
    assert first.kv_indices is second.kv_indices
    assert first.mask_mod is not second.mask_mod
    assert not first.kv_indices.is_inference()


def test_a_window_has_as_many_blocks_as_it_needs_and_no_more() -> None:
    any_visible, all_visible = block_table(causal_mask & window_mask(BLOCK_SIZE), 64 * BLOCK_SIZE, 64 * BLOCK_SIZE)
    assert any_visible.sum() == 2 * 64 - 1
    assert not all_visible.any()
