"""Time training until a language model has the validation loss of nanoGPT's settings, with AdamW and with Muon.

The peer is a GPT in plain PyTorch with nanoGPT's published settings for a character model: on a CPU 0.8M parameters
and 2,000 steps, on a GPU 10.7M parameters and 5,000 steps, compiled. Its loss after the last step is the target.
Triform trains the same sizes with a tenth of the steps, then with more of them until it reaches the target.
Only training is timed, not loading or validation. All losses are those of the whole validation text in adjacent
windows.

`--data FILE` is the text, for example Tiny Shakespeare. The last tenth is the validation text.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.options import build_parser, default_device
from benchmarks.plain import PlainGPT
from benchmarks.report import BenchmarkReport
from triform.data.builtin import stories
from triform.io.events import read_events
from triform.launch import train

STEP_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # of the steps of the peer, tried in this order
OPTIMIZERS = ("adamw", "muon")


@dataclass(frozen=True)
class Sizes:
    """The settings of nanoGPT for a character model."""

    d_model: int
    n_layers: int
    n_heads: int
    max_len: int
    batch_size: int
    dropout: float
    n_steps: int
    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    n_warmup_steps: int = 100
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1


CPU_SIZES = Sizes(128, 4, 4, 64, 12, 0.0, 2_000)
GPU_SIZES = Sizes(384, 6, 6, 256, 64, 0.2, 5_000)
SMOKE_SIZES = Sizes(16, 1, 2, 16, 4, 0.0, 10, n_warmup_steps=1)


def encode_characters(text: str, alphabet: list[str]) -> Tensor:
    ids = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([ids[character] for character in text])


def learning_rate(step: int, sizes: Sizes) -> float:
    """Return the learning rate of nanoGPT: a linear warm-up, then a half cosine."""
    if step < sizes.n_warmup_steps:
        return sizes.lr * (step + 1) / (sizes.n_warmup_steps + 1)
    progress = (step - sizes.n_warmup_steps) / max(1, sizes.n_steps - sizes.n_warmup_steps)
    minimum = sizes.lr * sizes.min_lr_ratio
    return minimum + 0.5 * (1 + math.cos(math.pi * progress)) * (sizes.lr - minimum)


def build_optimizer(model: nn.Module, sizes: Sizes, *, fused: bool) -> torch.optim.AdamW:
    """Build AdamW without weight decay for biases and norms."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": sizes.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=sizes.lr, betas=sizes.betas, fused=fused)


def train_peer(report: BenchmarkReport, sizes: Sizes, text: str, valid_text: str) -> tuple[float, float]:
    """Train the peer, and return the seconds and the validation loss."""
    torch.manual_seed(0)
    alphabet = sorted(set(text + valid_text))
    tokens = encode_characters(text, alphabet).to(report.device)
    model = PlainGPT(len(alphabet), sizes.d_model, sizes.n_layers, sizes.n_heads, sizes.max_len, sizes.dropout)
    model = model.to(report.device)
    optimizer = build_optimizer(model, sizes, fused=report.cuda)
    run_model: Any = torch.compile(model) if report.cuda else model
    offsets = torch.arange(sizes.max_len + 1, device=report.device)
    start_time = time.perf_counter()
    for step in range(sizes.n_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, sizes)
        starts = torch.randint(len(tokens) - sizes.max_len - 1, (sizes.batch_size, 1)).to(report.device)
        windows = tokens[starts + offsets]
        with torch.autocast(report.device.type, torch.bfloat16, enabled=report.cuda):
            logits = run_model(windows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    loss.item()  # waits for the device
    seconds = time.perf_counter() - start_time
    return seconds, validation_loss(model.eval(), encode_characters(valid_text, alphabet), sizes.max_len)


@torch.inference_mode()
def validation_loss(model: nn.Module, tokens: Tensor, max_len: int) -> float:
    """Return the mean loss over adjacent windows."""
    device = next(model.parameters()).device
    n_windows = (len(tokens) - 1) // max_len
    inputs = tokens[: n_windows * max_len].view(n_windows, max_len)
    targets = tokens[1 : n_windows * max_len + 1].view(n_windows, max_len)
    losses = [
        F.cross_entropy(model(part.to(device)).flatten(0, 1), part_targets.to(device).flatten(), reduction="sum")
        for part, part_targets in zip(inputs.split(64), targets.split(64), strict=True)
    ]
    return float(torch.stack(losses).sum()) / targets.numel()


def train_triform(
    report: BenchmarkReport, sizes: Sizes, optimizer: str, n_steps: int, files: tuple[Path, Path], folder: Path
) -> tuple[float, float]:
    """Train with `triform.train`, and return the seconds and the validation loss."""
    run = train(
        "generate",
        data={"train": str(files[0]), "valid": str(files[1]), "max_len": sizes.max_len},
        tokenizer={"kind": "char"},
        model={
            "d_model": sizes.d_model,
            "n_layers": sizes.n_layers,
            "n_heads": sizes.n_heads,
            "dropout": sizes.dropout,
        },
        train={
            "optimizer": optimizer,
            "lr": 2 * sizes.lr,
            "betas": sizes.betas,
            "weight_decay": sizes.weight_decay,
            "batch_size": sizes.batch_size,
            "max_steps": n_steps,
            "eval_every": n_steps,
            "log_every": n_steps,
        },
        out=folder / f"{optimizer}-{n_steps}",
        device=report.device.type,
        quiet=True,
    )
    events = read_events(run.path / "metrics.jsonl")
    [seconds] = [event["seconds"] for event in events if event["event"] == "train" and event["step"] == n_steps]
    return seconds, run.evaluate(str(files[1]))["loss"]


def measure_optimizer(
    report: BenchmarkReport, sizes: Sizes, optimizer: str, target: tuple[float, float], files: tuple[Path, Path]
) -> None:
    """Train with more and more steps until the loss is that of the peer."""
    peer_seconds, peer_loss = target
    for share in STEP_SHARES[-1:] if report.smoke else STEP_SHARES:
        n_steps = math.ceil(share * sizes.n_steps)
        with tempfile.TemporaryDirectory() as folder:
            seconds, loss = train_triform(report, sizes, optimizer, n_steps, files, Path(folder))
        reached = loss <= peer_loss
        report.add_figures(
            f"triform {optimizer}, {n_steps} steps",
            seconds=seconds,
            loss=loss,
            reached=reached,
            time_ratio=seconds / peer_seconds,
        )
        if reached:
            return


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default=default_device(), help="cpu or cuda; by default cuda if there is a GPU")
    parser.add_argument("--data", type=Path, help="a text file; without it, a built-in text, which is too easy")
    options = parser.parse_args(arguments)
    report = BenchmarkReport("time_to_loss", options)
    sizes = SMOKE_SIZES if report.smoke else GPU_SIZES if report.cuda else CPU_SIZES
    text = options.data.read_text(encoding="utf-8") if options.data else stories("train")
    split = int(0.9 * len(text))
    parts = (text[:split], text[split:])
    peer = train_peer(report, sizes, *parts)
    report.add_figures(f"plain PyTorch, {sizes.n_steps} steps", seconds=peer[0], loss=peer[1])
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder) / "train.txt", Path(folder) / "valid.txt")
        for file, part in zip(files, parts, strict=True):
            file.write_text(part, encoding="utf-8")
        for optimizer in OPTIMIZERS:
            measure_optimizer(report, sizes, optimizer, peer, files)
    report.write()


if __name__ == "__main__":
    main()
