"""What attention costs, counted and not timed: numbers held, bytes alive, multiplications made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from score_cases import score_fn_without_position
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from triform.config import ModelConfig
from triform.nn.attention import AttentionKernel, ScoreFunction, naive_attention
from triform.nn.kernels import tiling
from triform.nn.kernels.packing import PackedLayout
from triform.nn.kernels.tiling import chunked_attention, tiled_sdpa_attention
from triform.nn.masks import AttentionMask, CausalMask, FullMask, PaddingMask, causal_mask, window_mask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES

HEADS, WIDTH = 8, 16


class LargestTensor(TorchDispatchMode):
    """The size of the largest tensor that any operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


def build_score_fn(**settings: Any) -> ScoreFunction:
    config = ModelConfig(d_model=HEADS * WIDTH, n_heads=HEADS, **settings)
    return ScoreFunction(
        SCORES[config.attention_score](config), build_relative_position(config, 4096, causal=True)
    ).float()


def random_qkv(t: int, kv_heads: int = HEADS, rows: int = 1) -> list[Tensor]:
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(rows, n, t, WIDTH, dtype=torch.float32, requires_grad=True) for n in heads]


def forward_and_backward(
    kernel: AttentionKernel, inputs: list[Tensor], mask: AttentionMask, score_fn: ScoreFunction
) -> None:
    kernel(*inputs, mask, score_fn, 0.0).sum().backward()


def largest_numel(
    kernel: AttentionKernel, t: int, mask: AttentionMask, score_fn: ScoreFunction, **shape: int
) -> int:
    inputs = random_qkv(t, **shape)
    with LargestTensor() as mode:
        forward_and_backward(kernel, inputs, mask, score_fn)
    return mode.numel


def peak_bytes(work: Callable[[], None]) -> int:
    """The most bytes alive at once beyond those alive before, from every allocation on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    assert events
    return peak


# ------------------------------------------------------------------------------------------ the additive score


def test_the_additive_score_never_holds_a_number_for_each_pair_and_coordinate() -> None:
    t, score_fn = 512, build_score_fn(attention_score="additive")
    full_numel = HEADS * t * t * WIDTH
    numel = largest_numel(chunked_attention, t, causal_mask, score_fn)
    assert numel <= tiling.MAX_CHUNK_ELEMENTS_CPU
    assert numel < full_numel / 4


def test_the_additive_score_stays_within_a_few_pieces_of_memory() -> None:
    t, score_fn, inputs = 512, build_score_fn(attention_score="additive"), random_qkv(512)
    chunk_bytes, full_bytes = 4 * tiling.MAX_CHUNK_ELEMENTS_CPU, 4 * HEADS * t * t * WIDTH  # bytes
    peak = peak_bytes(lambda: forward_and_backward(chunked_attention, inputs, causal_mask, score_fn))
    assert peak < 6 * chunk_bytes < full_bytes


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_what_the_formula_holds_grows_with_the_text_and_not_with_its_square(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", 1 << 17)
    score_fn = build_score_fn(positions=positions)
    peaks = {}
    for t in (256, 512, 1024):
        inputs = random_qkv(t)
        peaks[t] = peak_bytes(
            lambda inputs=inputs: forward_and_backward(chunked_attention, inputs, causal_mask, score_fn)
        )
    assert peaks[1024] < 3 * peaks[512]
    assert peaks[512] < 3 * peaks[256]


@pytest.mark.parametrize("width", [-1, 3, 200])
def test_no_piece_of_the_formula_holds_more_than_it_may(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "MAX_CHUNK_ELEMENTS_CPU", 1 << 18)
    assert (
        largest_numel(
            chunked_attention, 512, causal_mask & window_mask(width), build_score_fn(attention_score="additive")
        )
        <= 1 << 18
    )


def test_relative_positions_never_hold_a_vector_for_each_pair() -> None:
    t = 256
    assert (
        largest_numel(naive_attention, t, causal_mask, build_score_fn(positions="relative"))
        <= HEADS * t * t * 33 // WIDTH
    )


# ------------------------------------------------------------------------------------------ windows

LONG_LEN, NARROW_WINDOW = 2048, 64  # as long as need be, and a window as narrow
NARROW_MASKS = {
    "causal": lambda t: causal_mask & window_mask(NARROW_WINDOW),
    "both sides": lambda t: window_mask(NARROW_WINDOW),
    "padded": lambda t: causal_mask & window_mask(NARROW_WINDOW) & PaddingMask(torch.arange(t)[None] < t - 100),
    "packed": lambda t: causal_mask & window_mask(NARROW_WINDOW) & PackedLayout([t // 2, t // 4, t // 4]).mask,
}


@pytest.mark.parametrize("positions", ["none", "alibi", "t5"])
@pytest.mark.parametrize("mask", NARROW_MASKS)
def test_a_narrow_window_never_makes_a_tensor_of_all_pairs(mask: str, positions: str) -> None:
    """Not one number a pair, not even for one head: neither scores nor masks nor biases."""
    numel = largest_numel(
        tiled_sdpa_attention,
        LONG_LEN,
        NARROW_MASKS[mask](LONG_LEN),
        build_score_fn(positions=positions),
        kv_heads=2,
    )
    assert numel < LONG_LEN * LONG_LEN / 8
    # A whole input, or one piece's scores.
    assert numel <= max(HEADS * LONG_LEN * WIDTH, HEADS * NARROW_WINDOW * 4 * NARROW_WINDOW)


def flash_flops(q: tuple[int, ...], k: tuple[int, ...], *others: Any, **more: Any) -> int:
    return 4 * q[0] * q[1] * q[2] * k[2] * q[3]


def flash_backward_flops(grad: Any, q: tuple[int, ...], k: tuple[int, ...], *others: Any, **more: Any) -> int:
    return 10 * q[0] * q[1] * q[2] * k[2] * q[3]


FLOP_FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flash_backward_flops,
}


def count_flops(kernel: AttentionKernel, t: int, mask: AttentionMask, score_fn: ScoreFunction) -> int:
    inputs = random_qkv(t)
    with FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter:
        forward_and_backward(kernel, inputs, mask, score_fn)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("kernel", "settings", "mask"),
    [
        *((tiled_sdpa_attention, {}, rule) for rule in NARROW_MASKS),
        (tiled_sdpa_attention, {"positions": "t5"}, "padded"),
        (chunked_attention, {"positions": "relative"}, "causal"),
    ],
)
def test_the_work_of_a_window_grows_with_the_text_and_not_with_its_square(
    kernel: AttentionKernel, settings: dict[str, str], mask: str
) -> None:
    short, long = (count_flops(kernel, t, NARROW_MASKS[mask](t), build_score_fn(**settings)) for t in (512, 1024))
    assert long / short == pytest.approx(2, abs=0.25)
    full_flops = count_flops(kernel, 1024, CausalMask(), build_score_fn(**settings))
    assert long < full_flops / 3


def test_the_work_of_a_window_grows_with_its_width() -> None:
    narrow, wide = (
        count_flops(tiled_sdpa_attention, 2048, causal_mask & window_mask(width), build_score_fn())
        for width in (128, 256)
    )
    assert 1.5 < wide / narrow < 2.5


def test_packed_rows_cost_what_they_cost_alone() -> None:
    alone = sum(
        count_flops(tiled_sdpa_attention, length, causal_mask, build_score_fn()) for length in (500, 300, 200)
    )
    assert (
        count_flops(tiled_sdpa_attention, 1000, causal_mask & PackedLayout([500, 300, 200]).mask, build_score_fn())
        == alone
    )
    assert alone < count_flops(tiled_sdpa_attention, 1000, causal_mask, build_score_fn()) / 2


def test_one_new_token_reads_no_farther_than_its_window() -> None:
    score_fn = score_fn_without_position(ModelConfig(d_model=HEADS * WIDTH, n_heads=HEADS))
    q, (k, v) = random_qkv(1)[0], random_qkv(1000)[1:]
    with FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter:
        tiled_sdpa_attention(q, k, v, causal_mask & window_mask(50), score_fn, 0.0)
    assert counter.get_total_flops() == 4 * HEADS * 50 * WIDTH


# ------------------------------------------------------------------------------------------ flags instead of masks


@pytest.mark.parametrize("mask", [FullMask, CausalMask])
def test_plain_attention_makes_no_tensor_of_all_pairs(mask: type[AttentionMask]) -> None:
    assert largest_numel(tiled_sdpa_attention, 300, mask(), build_score_fn()) < 300 * 300
