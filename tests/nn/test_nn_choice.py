"""Which kernel is taken, and the blocks that FlexAttention is told of, counted by hand."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matching_cases import RELATIONS, matching
from rule_cases import Case, dense

from triform.nn import choice, flex
from triform.nn.choice import FLEX, FORMULA, FUSED, Choice, choose
from triform.nn.flex import BLOCK, blocks, fits
from triform.nn.masks import Rule, causal, everything, real, window
from triform.nn.rows import Packed

DOT = matching("scaled_dot", "none", causal=True, width=16)
LONG = 2048
KEEP = torch.ones(2, LONG, dtype=torch.bool)
MANY, FEW = Packed([512] * 4).rule, Packed([1024] * 2).rule


def seen(t: int = LONG, *, cuda: bool = True, width: int = 64) -> Any:
    """A tensor as far as choosing goes: where it is and how large."""
    return SimpleNamespace(is_cuda=cuda, shape=(2, 4, t, width))


@pytest.fixture(autouse=True)
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "find_spec", lambda name: name)


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
        assert got is (FLEX if cuda else FUSED)


@pytest.mark.parametrize(
    ("rule", "t", "s", "wanted"),
    [
        (causal & window(64), LONG, LONG, FLEX),
        (window(64), LONG, LONG, FLEX),
        (causal & window(64) & real(KEEP), LONG, LONG, FLEX),
        (causal & window(512), LONG, LONG, FLEX),  # a quarter of the text
        (causal & window(513), LONG, LONG, FUSED),  # too wide to be worth it
        (window(256), LONG, LONG, FLEX),
        (window(257), LONG, LONG, FUSED),
        (causal & window(64), 1024, 1024, FLEX),
        (causal & window(64), 896, 896, FUSED),  # too short
        (causal & window(64), 1, LONG, FUSED),  # one new token
        (causal & window(64), LONG - 1, LONG - 1, FUSED),  # no whole blocks
        (causal & window(64), 1024, LONG - 1, FUSED),
        (causal, LONG, LONG, FUSED),
        (everything, LONG, LONG, FUSED),
        (causal & real(KEEP), LONG, LONG, FUSED),
        (causal & MANY, LONG, LONG, FLEX),
        (MANY, LONG, LONG, FLEX),
        (causal & FEW, LONG, LONG, FUSED),
    ],
)
def test_on_cuda_a_long_text_within_narrow_reach_is_compiled(rule: Rule, t: int, s: int, wanted: Choice) -> None:
    assert choose(seen(t), seen(s), rule, DOT, 0.0) is wanted
    assert choose(seen(t, cuda=False), seen(s, cuda=False), rule, DOT, 0.0) is FUSED


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
    assert fits(rule, seen(), seen(), 0.0)
    if not triton:
        monkeypatch.setattr(flex, "find_spec", lambda name: None)
    assert not fits(rule, q, k, dropout)
    assert choose(q, k, rule, DOT, dropout) is FUSED


def test_every_choice_says_why() -> None:
    for taken in (FORMULA, FLEX, FUSED):
        assert len(taken.why) > 20


def test_automatic_calls_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def kernel(*arguments: Any) -> str:
        calls.append(arguments)
        return "answer"

    monkeypatch.setattr(choice, "choose", lambda *asked: Choice(kernel, "a test"))
    assert choice.automatic("q", "k", "v", causal, DOT, 0.25) == "answer"
    assert calls == [("q", "k", "v", causal, DOT, 0.25)]


def test_the_meta_device_is_no_cuda() -> None:
    q = torch.empty(1, 4, LONG, 16, device="meta")
    assert choose(q, q, causal & window(64), DOT, 0.0) is FUSED
    assert choice.automatic(q, q, q, causal & window(64), DOT, 0.0).shape == q.shape


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


@given(block_cases())
def test_blocks_are_those_that_hold_something_and_those_that_hold_all(case: Case) -> None:
    some, every = by_hand(case.rule, case.t, case.s)
    got = blocks(case.rule, case.t, case.s)
    assert torch.equal(got.some, some)
    assert torch.equal(got.all, every)


@given(block_cases(), st.integers(0, 9))
def test_where_padding_may_hide_more_no_block_is_called_whole(case: Case, seed: int) -> None:
    keep = torch.rand(1, case.s, generator=torch.Generator().manual_seed(seed)) < 0.5
    got = blocks(case.rule & real(keep), case.t, case.s)
    assert not got.all.any()
    assert torch.equal(got.some, by_hand(case.rule, case.t, case.s)[0])


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=6))
def test_blocks_of_packed_targets_over_their_sources(sizes: list[tuple[int, int]]) -> None:
    targets, sources = ([*lengths] for lengths in zip(*sizes, strict=True))
    targets.append(BLOCK - sum(targets) % BLOCK)
    sources.append(BLOCK - sum(sources) % BLOCK)
    rule, t, s = Packed(sources).read_by(Packed(targets)), sum(targets), sum(sources)
    some, every = by_hand(rule, t, s)
    got = blocks(rule, t, s)
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


def test_a_rule_keeps_the_blocks_of_one_shape_only() -> None:
    rule, cpu = causal & window(40), torch.device("cpu")
    first = flex._block_mask(rule, 256, 256, cpu)
    assert flex._block_mask(rule, 256, 256, cpu) is first
    flex._block_mask(rule, 512, 512, cpu)
    assert len(rule.block_masks) == 1


def test_a_window_has_as_many_blocks_as_it_needs_and_no_more() -> None:
    some, every = blocks(causal & window(BLOCK), 64 * BLOCK, 64 * BLOCK)
    assert some.sum() == 2 * 64 - 1
    assert not every.any()
