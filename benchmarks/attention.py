"""Attention beside torch's own: windows, packed rows, and the additive score.

    python -m benchmarks attention               on this machine's CPU, or its GPU if there is one
    python -m benchmarks attention --quick       small sizes, to see that it runs
    python -m benchmarks attention --json F      also as JSON

Forward and backward together; a ratio above 1 says that Triform is faster.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.board import Board, asked
from benchmarks.timing import Work, as_graph
from triform.config import ModelConfig, Sizes
from triform.models.encoder import Classifier
from triform.nn.choice import automatic, choose
from triform.nn.kernels import Kernel, Matching, explicit
from triform.nn.masks import Rule, causal, everything, window
from triform.nn.positions import relation
from triform.nn.rows import pack, pad
from triform.nn.scores import SCORES


class Bench:
    def __init__(self, board: Board) -> None:
        self.board, self.device, self.quick, self.cuda = board, board.device, board.quick, board.cuda
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.heads, self.head_dim = (12 if self.cuda else 8), 64
        self.repeats = 2 if self.quick else 20 if self.cuda else 9

    def inputs(self, t: int, rows: int = 1) -> tuple[Tensor, ...]:
        shape = (rows, self.heads, t, self.head_dim)
        made = (torch.randn(shape, device=self.device, dtype=self.dtype) for _ in range(3))
        return tuple(x.requires_grad_() for x in made)

    def matching(self, **settings: Any) -> Matching:
        config = ModelConfig(d_model=self.heads * self.head_dim, n_heads=self.heads, **settings)
        made = Matching(SCORES[config.score](config), relation(config, 1, causal=True))
        return made.to(self.device, self.dtype)

    def work(self, kernel: Kernel, rule: Rule, matching: Matching, inputs: tuple[Tensor, ...]) -> Work:
        def run() -> None:
            y = kernel(*inputs, rule, matching, 0.0)
            torch.autograd.grad(y, inputs, y.detach())

        return run

    def plain(self, inputs: tuple[Tensor, ...], **how: Any) -> Work:
        def run() -> None:
            y = F.scaled_dot_product_attention(*inputs, **how)
            torch.autograd.grad(y, inputs, y.detach())

        return run

    def compare(self, what: str, who: dict[str, Work]) -> None:
        """Call by call, and on CUDA also replayed as graphs, as a compiled training step would run them."""
        self.board.race(what, who, self.repeats)
        if self.cuda:
            replayed = {name: as_graph(work) for name, work in who.items()}
            self.board.race(f"{what}, replayed", replayed, self.repeats)

    # -- what is compared

    def windows(self) -> None:
        """A causal window of 256 against full causal attention and against the same window as a mask."""
        width = 32 if self.quick else 256
        for t in (256,) if self.quick else (16_384,) if self.cuda else (4096,):
            inputs, rule, matching = self.inputs(t), causal & window(width), self.matching()
            who: dict[str, Work] = {
                "triform": self.work(automatic, rule, matching, inputs),
                "torch, full causal": self.plain(inputs, is_causal=True),
            }
            if t <= 4096:  # a mask of T × T
                i = torch.arange(t, device=self.device)
                mask = (i[None] <= i[:, None]) & (i[:, None] - i[None] < width)
                who["torch, window as a mask"] = self.plain(inputs, attn_mask=mask)
            kernel = choose(*inputs[:2], rule, matching, 0.0).name
            self.compare(f"window {width} of {t:,} ({kernel})", who)

    def growth(self) -> None:
        """The same window over longer and longer texts: time and memory should grow with T."""
        width, rule = (32, causal & window(32)) if self.quick else (256, causal & window(256))
        lengths = (256, 512) if self.quick else (8192, 16_384, 32_768, 65_536, 131_072)
        for t in lengths if self.cuda or self.quick else lengths[:3]:
            work = self.work(automatic, rule, self.matching(), self.inputs(t))
            self.board.race(f"window {width} of {t:,}", {"triform": work}, 2 if self.quick else 5)

    def both_sides(self) -> None:
        """An encoder's window, looking both ways, and the same with ALiBi."""
        t, width = (256, 16) if self.quick else (4096, 128)
        inputs = self.inputs(t)
        for name, settings in (("", {}), (", alibi", {"positions": "alibi"})):
            who = {
                "triform": self.work(automatic, window(width), self.matching(**settings), inputs),
                "torch, full": self.plain(inputs),
            }
            if self.cuda:  # the same window, the way torch alone would do it
                i = torch.arange(t, device=self.device)
                who["torch, window as a mask"] = self.plain(inputs, attn_mask=(i[None] - i[:, None]).abs() < width)
            self.compare(f"window {width} both ways of {t:,}{name}", who)

    def packing(self) -> None:
        """A classifier on texts of very unequal length: padded to the longest, and packed end to end."""
        numbers = random.Random(0)
        most = 64 if self.quick else 512
        rows = [[5] * int(numbers.triangular(8, most, most // 8)) for _ in range(8 if self.quick else 32)]
        config = ModelConfig(d_model=256, d_ff=1024, n_layers=2, n_heads=4, dropout=0.0)
        model = Classifier(config, Sizes(vocab_size=1000, max_len=most, n_labels=2)).to(self.device, self.dtype)
        who = {name: self._step(model, *made) for name, made in (("triform", pack(rows)), ("padded", pad(rows)))}
        real = sum(map(len, rows)) / (len(rows) * max(map(len, rows)))
        self.board.race(f"packed rows ({100 * real:.0f} % of padded is real)", who, self.repeats)

    def _step(self, model: nn.Module, tokens: Tensor, keep: Any) -> Work:
        tokens = tokens.to(self.device)
        keep = keep.to(self.device) if isinstance(keep, Tensor) else keep
        return lambda: model(tokens, keep).float().sum().backward()

    def additive(self) -> None:
        """The additive score, a few queries at a time against all at once; and what each keeps in memory."""
        t, matching = (128 if self.quick else 512), self.matching(score="additive")
        inputs = self.inputs(t)
        who = {
            "triform": self.work(automatic, everything, matching, inputs),
            "the formula, at once": self.work(explicit, everything, matching, inputs),
        }
        self.board.race(f"additive score, {t} tokens", who, min(3, self.repeats))
        for name, kernel in (("triform", automatic), ("the formula, at once", explicit)):
            self.board.note("additive score, kept for backward", who=name, MiB=_kept(kernel, inputs, matching))


def _kept(kernel: Kernel, inputs: tuple[Tensor, ...], matching: Matching) -> float:
    seen: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = kernel(*inputs, everything, matching, 0.0)
    del y
    return sum(seen.values()) / 2**20


def main(arguments: list[str] | None = None) -> None:
    board = Board("attention", asked(__doc__, arguments))
    bench = Bench(board)
    kind = str(bench.dtype).removeprefix("torch.")
    board.note("forward and backward", dtype=kind, heads=bench.heads, head_dim=bench.head_dim)
    for compare in (bench.windows, bench.growth, bench.both_sides, bench.packing, bench.additive):
        compare()
    board.write()


if __name__ == "__main__":
    main()
