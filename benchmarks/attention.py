"""Compare attention with torch's: windows, packed rows, and the additive score.

    python -m benchmarks attention               on the GPU if there is one, otherwise on the CPU
    python -m benchmarks attention --smoke       small sizes, to see that it works
    python -m benchmarks attention --json F      also write JSON

Times are of the forward and backward pass. A ratio above 1 means that Triform is faster.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from benchmarks.timing import TimedFn, capture_graph
from triform.config import DataSizes, ModelConfig
from triform.models.encoder import Classifier
from triform.nn.attention import AttentionKernel, ScoreFunction, naive_attention
from triform.nn.kernels.dispatch import dispatch_attention, select_kernel
from triform.nn.kernels.packing import pack
from triform.nn.layouts import pad
from triform.nn.masks import AttentionMask, causal_mask, full_mask, window_mask
from triform.nn.positions import build_relative_position
from triform.nn.scores import SCORES


class AttentionBenchmark:
    def __init__(self, report: BenchmarkReport) -> None:
        self.report, self.device, self.smoke, self.cuda = report, report.device, report.smoke, report.cuda
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.heads, self.head_dim = (12 if self.cuda else 8), 64
        self.repeats = 2 if self.smoke else 20 if self.cuda else 9

    def make_inputs(self, length: int, n_rows: int = 1) -> tuple[Tensor, ...]:
        shape = (n_rows, self.heads, length, self.head_dim)
        tensors = (torch.randn(shape, device=self.device, dtype=self.dtype) for _ in range(3))
        return tuple(tensor.requires_grad_() for tensor in tensors)

    def build_score_fn(self, **settings: Any) -> ScoreFunction:
        config = ModelConfig(d_model=self.heads * self.head_dim, n_heads=self.heads, **settings)
        score_fn = ScoreFunction(
            SCORES[config.attention_score](config), build_relative_position(config, 1, causal=True)
        )
        return score_fn.to(self.device, self.dtype)

    def build_run(
        self, kernel: AttentionKernel, mask: AttentionMask, score_fn: ScoreFunction, inputs: tuple[Tensor, ...]
    ) -> TimedFn:
        def run() -> None:
            y = kernel(*inputs, mask, score_fn, 0.0)
            torch.autograd.grad(y, inputs, y.detach())

        return run

    def build_torch_run(self, inputs: tuple[Tensor, ...], **options: Any) -> TimedFn:
        def run() -> None:
            y = F.scaled_dot_product_attention(*inputs, **options)
            torch.autograd.grad(y, inputs, y.detach())

        return run

    def compare(self, title: str, contestants: dict[str, TimedFn]) -> None:
        """Time the calls, and on CUDA also their replay as CUDA graphs, as in a compiled training step."""
        self.report.measure(title, contestants, self.repeats)
        if self.cuda:
            replayed = {name: capture_graph(run) for name, run in contestants.items()}
            self.report.measure(f"{title}, replayed", replayed, self.repeats)

    # -- what is compared

    def causal_windows(self) -> None:
        """Compare a causal window of 256 with full causal attention and with the same window as a mask."""
        width = 32 if self.smoke else 256
        for length in (256,) if self.smoke else (16_384,) if self.cuda else (4096,):
            inputs, mask, score_fn = (
                self.make_inputs(length),
                causal_mask & window_mask(width),
                self.build_score_fn(),
            )
            contestants: dict[str, TimedFn] = {
                "triform": self.build_run(dispatch_attention, mask, score_fn, inputs),
                "torch, full causal": self.build_torch_run(inputs, is_causal=True),
            }
            if length <= 4096:  # a mask of T × T
                positions = torch.arange(length, device=self.device)
                bool_mask = (positions[None] <= positions[:, None]) & (positions[:, None] - positions[None] < width)
                contestants["torch, window as a mask"] = self.build_torch_run(inputs, attn_mask=bool_mask)
            kernel = select_kernel(*inputs[:2], mask, score_fn, 0.0).name
            self.compare(f"window {width} of {length:,} ({kernel})", contestants)

    def length_scaling(self) -> None:
        """Time the same window over texts of growing length; time and memory should grow with T."""
        width, mask = (32, causal_mask & window_mask(32)) if self.smoke else (256, causal_mask & window_mask(256))
        lengths = (256, 512) if self.smoke else (8192, 16_384, 32_768, 65_536, 131_072)
        for length in lengths if self.cuda or self.smoke else lengths[:3]:
            run = self.build_run(dispatch_attention, mask, self.build_score_fn(), self.make_inputs(length))
            self.report.measure(f"window {width} of {length:,}", {"triform": run}, 2 if self.smoke else 5)

    def bidirectional_windows(self) -> None:
        """Compare a bidirectional window, with and without ALiBi."""
        length, width = (256, 16) if self.smoke else (4096, 128)
        inputs = self.make_inputs(length)
        for name, settings in (("", {}), (", alibi", {"positions": "alibi"})):
            contestants = {
                "triform": self.build_run(
                    dispatch_attention, window_mask(width), self.build_score_fn(**settings), inputs
                ),
                "torch, full": self.build_torch_run(inputs),
            }
            if self.cuda:  # the same window as a mask, which torch needs
                positions = torch.arange(length, device=self.device)
                contestants["torch, window as a mask"] = self.build_torch_run(
                    inputs, attn_mask=(positions[None] - positions[:, None]).abs() < width
                )
            self.compare(f"window {width} both ways of {length:,}{name}", contestants)

    def packing(self) -> None:
        """Compare a classifier on texts of very different lengths, padded to the longest and packed end to end."""
        rng = random.Random(0)
        max_len = 64 if self.smoke else 512
        rows = [[5] * int(rng.triangular(8, max_len, max_len // 8)) for _ in range(8 if self.smoke else 32)]
        config = ModelConfig(d_model=256, d_ff=1024, n_layers=2, n_heads=4, dropout=0.0)
        model = Classifier(config, DataSizes(vocab_size=1000, max_len=max_len, n_labels=2)).to(
            self.device, self.dtype
        )
        contestants = {
            name: self._build_step(model, *batch)
            for name, batch in (("triform", pack(rows)), ("padded", pad(rows)))
        }
        real_share = sum(map(len, rows)) / (len(rows) * max(map(len, rows)))
        self.report.measure(f"packed rows ({100 * real_share:.0f} % of padded is real)", contestants, self.repeats)

    def _build_step(self, model: nn.Module, tokens: Tensor, layout: Any) -> TimedFn:
        tokens = tokens.to(self.device)
        layout = layout.to(self.device) if isinstance(layout, Tensor) else layout
        return lambda: model(tokens, layout).float().sum().backward()

    def additive_score(self) -> None:
        """Compare the additive score in chunks of queries with all at once, in time and saved memory."""
        length, score_fn = (128 if self.smoke else 512), self.build_score_fn(attention_score="additive")
        inputs = self.make_inputs(length)
        contestants = {
            "triform": self.build_run(dispatch_attention, full_mask, score_fn, inputs),
            "the formula, at once": self.build_run(naive_attention, full_mask, score_fn, inputs),
        }
        self.report.measure(f"additive score, {length} tokens", contestants, min(3, self.repeats))
        for name, kernel in (("triform", dispatch_attention), ("the formula, at once", naive_attention)):
            self.report.add_figures(
                "additive score, kept for backward", who=name, MiB=_saved_mib(kernel, inputs, score_fn)
            )


def _saved_mib(kernel: AttentionKernel, inputs: tuple[Tensor, ...], score_fn: ScoreFunction) -> float:
    storage_sizes: dict[int, int] = {}

    def record_storage(tensor: Tensor) -> Tensor:
        storage_sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda x: x):
        y = kernel(*inputs, full_mask, score_fn, 0.0)
    del y
    return sum(storage_sizes.values()) / 2**20


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("attention", parse_options(__doc__, arguments))
    benchmark = AttentionBenchmark(report)
    dtype_name = str(benchmark.dtype).removeprefix("torch.")
    report.add_figures("forward and backward", dtype=dtype_name, heads=benchmark.heads, head_dim=benchmark.head_dim)
    for compare in (
        benchmark.causal_windows,
        benchmark.length_scaling,
        benchmark.bidirectional_windows,
        benchmark.packing,
        benchmark.additive_score,
    ):
        compare()
    report.write()


if __name__ == "__main__":
    main()
