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
from matching_cases import HEADS, RELATIONS, attended, inputs, matching
from rule_cases import Case, dense
from torch import Tensor

from triform.nn import choice, flash, flex
from triform.nn.choice import FLASH, FLEX, FORMULA, FUSED, PIECES, Choice, choose
from triform.nn.flex import BLOCK, Blocks, blocks
from triform.nn.kernels import explicit, fused
from triform.nn.masks import Rule, causal, everything, real, window
from triform.nn.rows import Packed

DOT = matching("scaled_dot", "none", causal=True, width=16)
LONG = 2048
KEEP = torch.ones(2, LONG, dtype=torch.bool)
MANY = Packed([512] * 4).rule


def seen(t: int = LONG, *, cuda: bool = True, width: int = 64, dtype: torch.dtype = torch.float32) -> Any:
    """A tensor as far as choosing goes: where it is, how large, and of what."""
    device = torch.device("cuda" if cuda else "cpu")
    return SimpleNamespace(is_cuda=cuda, device=device, shape=(2, 4, t, width), dtype=dtype)


@pytest.fixture(autouse=True)
def _as_on_a_machine_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "find_spec", lambda name: name)
    monkeypatch.setattr(flex, "_shapes", set())
    monkeypatch.setattr(flash, "_offered", lambda: True)


# ------------------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine", "additive"])
@pytest.mark.parametrize("position", RELATIONS)
@pytest.mark.parametrize("cuda", [True, False])
def test_what_is_no_dot_product_takes_the_formula(score: str, position: str, cuda: bool) -> None:
    if score == "additive" and position in ("rotary", "relative"):
        return
    q = seen(cuda=cuda)
    got = choose(q, q, causal & window(64), matching(score, position, causal=True), 0.0)
    if score == "additive" or position == "relative":
        assert got is FORMULA
    else:
        assert got is (FLEX if cuda else PIECES)


@pytest.mark.parametrize(
    ("rule", "t", "s", "wanted"),
    [
        (causal & window(64), LONG, LONG, FLEX),
        (window(64), LONG, LONG, FLEX),
        (causal & window(64) & real(KEEP), LONG, LONG, FLEX),
        (causal & window(512), LONG, LONG, FLEX),  # a quarter of the text
        (window(256), LONG, LONG, FLEX),
        (causal & window(64), 1024, 1024, FLEX),
        (causal & window(513), LONG, LONG, FUSED),  # too wide to be worth it
        (window(257), LONG, LONG, FUSED),
        (causal & window(64), 896, 896, FUSED),  # too short
        (causal & window(64), 1, LONG, FUSED),  # one new token
        (causal & window(64), LONG - 1, LONG - 1, FUSED),  # no whole blocks
        (causal & window(64), 1024, LONG - 1, FUSED),
        (causal, LONG, LONG, FUSED),
        (everything, LONG, LONG, FUSED),
        (causal & real(KEEP), LONG, LONG, FUSED),
        (causal & MANY, LONG, LONG, FUSED),
        (MANY, LONG, LONG, FUSED),
    ],
)
def test_on_cuda_a_long_text_in_a_narrow_window_is_compiled(rule: Rule, t: int, s: int, wanted: Choice) -> None:
    got = choose(seen(t), seen(s), rule, DOT, 0.0)
    assert got.kernel is wanted.kernel
    assert choose(seen(t, cuda=False), seen(s, cuda=False), rule, DOT, 0.0).kernel is fused


def test_pieces_are_called_so_where_there_are_any() -> None:
    near, far = (seen(t, cuda=False) for t in (64, LONG))
    assert choose(near, near, causal & window(16), DOT, 0.0) is FUSED
    assert choose(far, far, causal & window(16), DOT, 0.0) is PIECES
    assert choose(far, far, causal & MANY, DOT, 0.0) is PIECES
    assert choose(far, far, causal, DOT, 0.0) is FUSED
    assert len({taken.name for taken in (FORMULA, FLASH, FLEX, FUSED, PIECES)}) == 5


@pytest.mark.parametrize(
    ("q", "k", "dropout", "triton"),
    [
        (seen(), seen(), 0.1, True),
        (seen(LONG - 1), seen(), 0.0, True),
        (seen(), seen(LONG + 1), 0.0, True),
        (seen(width=15), seen(width=15), 0.0, True),
        (seen(), seen(), 0.0, False),
    ],
    ids=["dropout", "part of a block of queries", "part of a block of keys", "small heads", "no triton"],
)
def test_what_flex_attention_cannot_do_is_fused(
    q: Any, k: Any, dropout: float, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = causal & window(64)
    assert flex.fits(seen(), seen(), rule, DOT, 0.0)
    if not triton:
        monkeypatch.setattr(flex, "find_spec", lambda name: None)
    assert not flex.fits(q, k, rule, DOT, dropout)
    assert choose(q, k, rule, DOT, dropout).kernel is fused


def test_no_more_shapes_are_compiled_than_torch_will_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "MOST_SHAPES", 3)
    rule, lengths = causal & window(64), (1024, 1152, 1280, 1408, 1536)
    for _ in range(2):
        taken = [choose(seen(t), seen(t), rule, DOT, 0.0).kernel for t in lengths]
        assert taken == [flex.flex] * 3 + [fused] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [MANY, causal & MANY, causal & window(64) & MANY, window(64) & MANY])
def test_packed_rows_in_half_precision_take_flash(rule: Rule, dtype: torch.dtype) -> None:
    q = seen(dtype=dtype)
    assert choose(q, q, rule, DOT, 0.0) is FLASH
    assert choose(q, q, rule, matching("cosine", "rotary", causal=True), 0.0) is FLASH


@pytest.mark.parametrize(
    ("q", "rule", "positions", "dropout"),
    [
        (seen(), causal & MANY, "none", 0.0),
        (seen(dtype=torch.bfloat16), causal & MANY, "none", 0.1),
        (seen(dtype=torch.bfloat16), causal & MANY, "t5", 0.0),
        (seen(dtype=torch.bfloat16), causal & MANY, "alibi", 0.0),
        (seen(dtype=torch.bfloat16, width=12), causal & MANY, "none", 0.0),
        (seen(dtype=torch.bfloat16), MANY & real(KEEP[:1]), "none", 0.0),
        (seen(dtype=torch.bfloat16, width=512), causal & MANY, "none", 0.0),
    ],
    ids=["single precision", "dropout", "t5", "alibi", "odd heads", "padding", "large heads"],
)
def test_what_flash_cannot_do_is_fused(q: Any, rule: Rule, positions: str, dropout: float) -> None:
    assert choose(q, q, rule, matching("scaled_dot", positions, causal=True), dropout).kernel is fused


def test_an_older_torch_without_flash_for_packed_rows_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_offered", lambda: False)
    q = seen(dtype=torch.bfloat16)
    assert choose(q, q, causal & MANY, DOT, 0.0) is PIECES


def test_every_choice_says_why() -> None:
    for taken in (FORMULA, FLASH, FLEX, FUSED, PIECES):
        assert taken.why


def test_automatic_calls_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def kernel(*arguments: Any) -> str:
        calls.append(arguments)
        return "answer"

    monkeypatch.setattr(choice, "choose", lambda *asked: Choice("mine", kernel, "a test"))
    assert choice.automatic("q", "k", "v", causal, DOT, 0.25) == "answer"
    assert calls == [("q", "k", "v", causal, DOT, 0.25)]


def test_the_meta_device_is_no_cuda() -> None:
    q = torch.empty(1, 4, LONG, 16, device="meta")
    assert choose(q, q, causal & window(64), DOT, 0.0).kernel is fused
    assert choice.automatic(q, q, q, causal & window(64), DOT, 0.0).shape == q.shape


# ------------------------------------------------------------------------------------------ rows for flash


def row_by_row(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, **how: Any
) -> Tensor:
    """What torch's attention over rows of unequal length does with the same arguments: (N, H, Dh) each."""
    parts = []
    spans = zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True)
    for (start, end), (first, last) in spans:
        t, s = end - start, last - first
        assert t <= max_q
        assert s <= max_k
        scores = torch.einsum("ihd,jhd->hij", q[start:end], k[first:last]) * how["scale"]
        distance = torch.arange(s) - torch.arange(s - t, s)[:, None]  # the last query stands at the last key
        before, after = (math.inf if each < 0 else each for each in how["window_size"])
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
    monkeypatch.setattr(varlen, "varlen_attn", row_by_row)
    case = Case(13, 13, 2, causes, width, lengths=(5, 1, 7))
    made, qkv = matching(score, "none", causal=causes), inputs(2, 13, 13, kv_heads)
    got, wanted = (attended(kernel, qkv, case.rule, made) for kernel in (flash.flash, explicit))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_flash_of_packed_targets_over_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", row_by_row)
    rule = Packed([2, 6, 1]).read_by(Packed([4, 1, 5]))
    made, qkv = matching("scaled_dot", "none", causal=False), inputs(1, 10, 9, 2)
    got, wanted = (kernel(*qkv, rule, made, 0.0) for kernel in (flash.flash, explicit))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------ blocks


def by_hand(rule: Rule, t: int, s: int) -> tuple[torch.Tensor, torch.Tensor]:
    table = dense(rule, t, s)[0, 0].view(t // BLOCK, BLOCK, s // BLOCK, BLOCK)
    return table.any(3).any(1), table.all(3).all(1)


@st.composite
def block_cases(draw: st.DrawFn) -> Case:
    s = BLOCK * draw(st.integers(1, 5))
    t = draw(st.sampled_from([s, s, BLOCK]))
    edges = [1, 2, 127, 128, 129, 130, 255, 256, 257, 258, 700]
    width = draw(st.one_of(st.just(0), st.sampled_from(edges), st.integers(1, s)))
    lengths: tuple[int, ...] = ()
    if t == s and draw(st.booleans()):
        edge = st.sampled_from([place for place in (1, 127, 128, 129, 256, 300) if place < s])
        cuts = draw(st.sets(st.one_of(st.integers(1, s - 1), edge), max_size=8))
        ends = [0, *sorted(cuts), s]
        lengths = tuple(b - a for a, b in pairwise(ends))
    return Case(t, s, 1, draw(st.booleans()), width, lengths=lengths)


def blocks_of(rule: Rule, t: int, s: int) -> Blocks:
    return blocks(rule.span, rule.stretches(t, s), t, s, exact=rule.exact)


@given(block_cases())
def test_blocks_are_those_that_hold_something_and_those_that_hold_all(case: Case) -> None:
    some, every = by_hand(case.rule, case.t, case.s)
    got = blocks_of(case.rule, case.t, case.s)
    assert torch.equal(got.some, some)
    assert torch.equal(got.all, every)


@given(block_cases(), st.integers(0, 9))
def test_where_padding_may_hide_more_no_block_is_called_whole(case: Case, seed: int) -> None:
    keep = torch.rand(1, case.s, generator=torch.Generator().manual_seed(seed)) < 0.5
    got = blocks_of(case.rule & real(keep), case.t, case.s)
    assert not got.all.any()
    assert torch.equal(got.some, by_hand(case.rule, case.t, case.s)[0])


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=6))
def test_blocks_of_packed_targets_over_their_sources(sizes: list[tuple[int, int]]) -> None:
    targets, sources = ([*lengths] for lengths in zip(*sizes, strict=True))
    targets.append(BLOCK - sum(targets) % BLOCK)
    sources.append(BLOCK - sum(sources) % BLOCK)
    rule, t, s = Packed(sources).read_by(Packed(targets)), sum(targets), sum(sources)
    some, every = by_hand(rule, t, s)
    got = blocks_of(rule, t, s)
    assert torch.equal(got.some, some)
    assert torch.equal(got.all, every)


@given(block_cases())
def test_the_lists_given_to_flex_attention_name_each_block_once(case: Case) -> None:
    mask = flex._block_mask(case.rule, case.t, case.s, torch.device("cpu"))
    some, every = by_hand(case.rule, case.t, case.s)
    for counts, numbers, kind in (
        (mask.kv_num_blocks, mask.kv_indices, some & ~every),
        (mask.full_kv_num_blocks, mask.full_kv_indices, every),
    ):
        for count, row, wanted in zip(counts[0, 0], numbers[0, 0], kind, strict=True):
            assert sorted(row[:count].tolist()) == wanted.nonzero().flatten().tolist()


def test_rules_of_one_span_share_their_lists_of_blocks_whatever_padding_they_hide() -> None:
    cpu = torch.device("cpu")
    first, second = (flex._block_mask(causal & window(40) & real(KEEP), 256, 256, cpu) for _ in range(2))
    assert first.kv_indices is second.kv_indices
    assert first.mask_mod is not second.mask_mod
    assert not first.kv_indices.is_inference()


def test_a_window_has_as_many_blocks_as_it_needs_and_no_more() -> None:
    some, every = blocks_of(causal & window(BLOCK), 64 * BLOCK, 64 * BLOCK)
    assert some.sum() == 2 * 64 - 1
    assert not every.any()
