"""Training in NumPy alone beside torch, on the built-in sets.

All contestants have the same sizes (width 128, 2 layers, 4 heads) and about 1,024 tokens a batch. `triform scratch`
is the NumPy model; `triform` is the trainer with the same settings, which on a CPU is eager torch; `torch.nn eager`
is plain PyTorch on the very batches that the NumPy model gets. On a CPU only, whatever the device; NumPy's products
run on as many threads as torch's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.board import Board, asked
from benchmarks.plain import PlainLM, PlainTranslator, stepper
from benchmarks.training import ours, theirs, trainer_of
from triform import scratch
from triform.config import Config, DataConfig, ModelConfig, TokenizerConfig, TrainConfig
from triform.data import sets
from triform.scratch.learning import Lesson

WIDTH, LAYERS, HEADS = 128, 2, 4
MODEL = ModelConfig(d_model=WIDTH, d_ff=4 * WIDTH, n_layers=LAYERS, n_heads=HEADS)
KINDS: dict[str, Any] = {"classify": "word", "generate": "char", "translate": "word"}
SETS = {"classify": "reviews", "generate": "topics", "translate": "numbers"}


class PlainClassifier(nn.Module):
    """nn.TransformerEncoder with embeddings, a mean and a head."""

    def __init__(self, vocab_size: int, n_labels: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, WIDTH), nn.Embedding(length, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, n_labels)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = self.body(x, src_key_padding_mask=~keep)
        share = keep[:, :, None].float()
        return self.head((x * share).sum(dim=1) / share.sum(dim=1))


def learner_of(task: str, steps: int) -> tuple[Any, Lesson]:
    """The NumPy model of a task, and what it learns from."""
    config = Config(
        model=MODEL,
        tokenizer=TokenizerConfig(kind=KINDS[task]),
        data=DataConfig(max_len=64 if task == "generate" else 0),
        train=TrainConfig(max_steps=steps, batch_tokens=1_024, schedule="constant", lr=1e-3),
    )
    if task == "generate":
        writer = scratch.LanguageModel(config)
        return writer, writer.lesson(sets.text("builtin:topics"))
    one, other = (list(side) for side in zip(*sets.pairs(f"builtin:{SETS[task]}"), strict=True))
    learner: Any = scratch.TextClassifier(config) if task == "classify" else scratch.Translator(config)
    return learner, learner.lesson(one, other)


def plain_of(task: str, learner: Any, lesson: Lesson) -> Callable[[], Tensor]:
    """A step of plain PyTorch over the same batches."""
    n, length = learner.tokenizer.vocab_size, learner.config.data.max_len
    model = {
        "classify": lambda: PlainClassifier(n, len(learner.config.data.labels), length),
        "generate": lambda: PlainLM(n, WIDTH, LAYERS, HEADS, 4 * WIDTH, length),
        "translate": lambda: PlainTranslator(n, WIDTH, LAYERS, HEADS, 0.1),
    }[task]()

    def inputs() -> tuple[tuple[Any, ...], Tensor]:
        given = lesson.batch(next(lesson.drawn)).inputs
        found = {name: torch.from_numpy(each.copy()) for name, each in given.items() if each is not None}
        if task == "classify":
            return (found["tokens"], found.get("keep", torch.ones_like(found["tokens"]) > 0)), found["labels"]
        if task == "generate":
            return (found["tokens"],), found["expected"]
        return (found["source"], found["target"]), found["expected"]

    return stepper(model, inputs, half=False)


def compare(board: Board, folder: Path, task: str) -> None:
    steps = 2 if board.quick else 10
    learner, lesson = learner_of(task, steps)
    settings: dict[str, Any] = {
        f"model.{name}": getattr(MODEL, name) for name in ("d_model", "n_layers", "n_heads")
    }
    settings |= {"tokenizer.kind": KINDS[task], "data.max_len": learner.config.data.max_len}
    with trainer_of(board, folder, task, "", **settings) as trainer:
        who = {
            "triform scratch": lambda: learner.learn(lesson),
            "triform": ours(trainer, steps),
            "torch.nn eager": theirs(plain_of(task, learner, lesson), steps),
        }
        board.race(f"{task}, builtin:{SETS[task]}", who, 2 if board.quick else 7, units=steps, unit="steps")


def main(arguments: list[str] | None = None) -> None:
    board = Board("scratch", asked(__doc__, [*(arguments or []), "--device", "cpu"]))
    with tempfile.TemporaryDirectory() as folder:
        for task in SETS:
            compare(board, Path(folder), task)
    board.write()


if __name__ == "__main__":
    main()
