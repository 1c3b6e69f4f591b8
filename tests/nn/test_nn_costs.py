"""What attention costs, counted and not timed: numbers held, bytes alive, multiplications made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from matching_cases import without_relation
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from triform.config import ModelConfig
from triform.nn import kernels
from triform.nn.kernels import Kernel, Matching, explicit, frugal, fused
from triform.nn.masks import Causal, Everything, Rule, causal, real, window
from triform.nn.positions import relation
from triform.nn.rows import Packed
from triform.nn.scores import SCORES

HEADS, WIDTH = 8, 16


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


def made(**more: Any) -> Matching:
    config = ModelConfig(d_model=HEADS * WIDTH, n_heads=HEADS, **more)
    return Matching(SCORES[config.score](config), relation(config, 4096, causal=True)).float()


def qkv(t: int, kv_heads: int = HEADS, rows: int = 1) -> list[Tensor]:
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(rows, n, t, WIDTH, dtype=torch.float32, requires_grad=True) for n in heads]


def forward_and_backward(kernel: Kernel, inputs: list[Tensor], rule: Rule, how: Matching) -> None:
    kernel(*inputs, rule, how, 0.0).sum().backward()


def largest(kernel: Kernel, t: int, rule: Rule, how: Matching, **shape: int) -> int:
    inputs = qkv(t, **shape)
    with Largest() as mode:
        forward_and_backward(kernel, inputs, rule, how)
    return mode.numel


def peak_bytes(work: Callable[[], None]) -> int:
    """The most bytes alive at once beyond those alive before, from every allocation on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    assert events
    return most


# ------------------------------------------------------------------------------------------ the additive score


def test_the_additive_score_never_holds_a_number_for_each_pair_and_coordinate() -> None:
    t, how = 512, made(score="additive")
    whole = HEADS * t * t * WIDTH
    numel = largest(frugal, t, causal, how)
    assert numel <= kernels.MOST_AT_ONCE
    assert numel < whole / 4


def test_the_additive_score_stays_within_a_few_pieces_of_memory() -> None:
    t, how, inputs = 512, made(score="additive"), qkv(512)
    a_piece, whole = 4 * kernels.MOST_AT_ONCE, 4 * HEADS * t * t * WIDTH  # bytes
    most = peak_bytes(lambda: forward_and_backward(frugal, inputs, causal, how))
    assert most < 6 * a_piece < whole


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_what_the_formula_holds_grows_with_the_text_and_not_with_its_square(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 1 << 17)
    how = made(positions=positions)
    peaks = {}
    for t in (256, 512, 1024):
        inputs = qkv(t)
        peaks[t] = peak_bytes(lambda inputs=inputs: forward_and_backward(frugal, inputs, causal, how))
    assert peaks[1024] < 3 * peaks[512]
    assert peaks[512] < 3 * peaks[256]


@pytest.mark.parametrize("width", [-1, 3, 200])
def test_no_piece_of_the_formula_holds_more_than_it_may(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 1 << 18)
    assert largest(frugal, 512, causal & window(width), made(score="additive")) <= 1 << 18


def test_relative_positions_never_hold_a_vector_for_each_pair() -> None:
    t = 256
    assert largest(explicit, t, causal, made(positions="relative")) <= HEADS * t * t * 33 // WIDTH


# ------------------------------------------------------------------------------------------ windows

LONG, NARROW = 2048, 64  # as long as need be, and a window as narrow
NARROW_RULES = {
    "causal": lambda t: causal & window(NARROW),
    "both sides": lambda t: window(NARROW),
    "padded": lambda t: causal & window(NARROW) & real(torch.arange(t)[None] < t - 100),
    "packed": lambda t: causal & window(NARROW) & Packed([t // 2, t // 4, t // 4]).rule,
}


@pytest.mark.parametrize("positions", ["none", "alibi", "t5"])
@pytest.mark.parametrize("rule", NARROW_RULES)
def test_a_narrow_window_never_makes_a_tensor_of_all_pairs(rule: str, positions: str) -> None:
    """Not one number a pair, not even for one head: neither scores nor masks nor biases."""
    numel = largest(fused, LONG, NARROW_RULES[rule](LONG), made(positions=positions), kv_heads=2)
    assert numel < LONG * LONG / 8
    assert numel <= max(HEADS * LONG * WIDTH, HEADS * NARROW * 4 * NARROW)  # a whole input, or one piece's scores


def flash_flops(q: tuple[int, ...], k: tuple[int, ...], *others: Any, **more: Any) -> int:
    return 4 * q[0] * q[1] * q[2] * k[2] * q[3]


def flash_backward_flops(grad: Any, q: tuple[int, ...], k: tuple[int, ...], *others: Any, **more: Any) -> int:
    return 10 * q[0] * q[1] * q[2] * k[2] * q[3]


COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flash_backward_flops,
}


def flops(kernel: Kernel, t: int, rule: Rule, how: Matching) -> int:
    inputs = qkv(t)
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        forward_and_backward(kernel, inputs, rule, how)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("kernel", "settings", "rule"),
    [
        *((fused, {}, rule) for rule in NARROW_RULES),
        (fused, {"positions": "t5"}, "padded"),
        (frugal, {"positions": "relative"}, "causal"),
    ],
)
def test_the_work_of_a_window_grows_with_the_text_and_not_with_its_square(
    kernel: Kernel, settings: dict[str, str], rule: str
) -> None:
    short, long = (flops(kernel, t, NARROW_RULES[rule](t), made(**settings)) for t in (512, 1024))
    assert long / short == pytest.approx(2, abs=0.25)
    everywhere = flops(kernel, 1024, Causal(), made(**settings))
    assert long < everywhere / 3


def test_the_work_of_a_window_grows_with_its_width() -> None:
    narrow, wide = (flops(fused, 2048, causal & window(width), made()) for width in (128, 256))
    assert 1.5 < wide / narrow < 2.5


def test_packed_rows_cost_what_they_cost_alone() -> None:
    alone = sum(flops(fused, length, causal, made()) for length in (500, 300, 200))
    assert flops(fused, 1000, causal & Packed([500, 300, 200]).rule, made()) == alone
    assert alone < flops(fused, 1000, causal, made()) / 2


def test_one_new_token_reads_no_farther_than_its_window() -> None:
    how = without_relation(ModelConfig(d_model=HEADS * WIDTH, n_heads=HEADS))
    q, (k, v) = qkv(1)[0], qkv(1000)[1:]
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        fused(q, k, v, causal & window(50), how, 0.0)
    assert counter.get_total_flops() == 4 * HEADS * 50 * WIDTH


# ------------------------------------------------------------------------------------------ flags instead of masks


@pytest.mark.parametrize("rule", [Everything, Causal])
def test_plain_attention_makes_no_tensor_of_all_pairs(rule: type[Rule]) -> None:
    assert largest(fused, 300, rule(), made()) < 300 * 300
