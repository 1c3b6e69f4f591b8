"""Train in NumPy, compared with torch, on the built-in sets.

All contestants have the same sizes (width 128, 2 layers, 4 heads) and about 1,024 tokens per batch. `triform
scratch` is the NumPy model, `triform` is the trainer with the same settings (eager torch on a CPU), and `torch.nn
eager` is plain PyTorch on the batches of the NumPy model. The benchmark always uses the CPU, with as many threads
for NumPy as for torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.options import parse_options
from benchmarks.plain import PlainLM, PlainTranslator, build_train_step
from benchmarks.report import BenchmarkReport
from benchmarks.training import build_peer_run, build_trainer_run, open_trainer
from triform import scratch
from triform.config import Config, DataConfig, ModelConfig, TokenizerConfig, TrainConfig
from triform.data import builtin_sets
from triform.scratch.training import TrainingData

D_MODEL, N_LAYERS, N_HEADS = 128, 2, 4
MODEL_CONFIG = ModelConfig(d_model=D_MODEL, d_ff=4 * D_MODEL, n_layers=N_LAYERS, n_heads=N_HEADS)
TOKENIZER_KINDS: dict[str, Any] = {"classify": "word", "generate": "char", "translate": "word"}
BUILTIN_SETS = {"classify": "reviews", "generate": "stories", "translate": "numbers"}


class PlainMeanClassifier(nn.Module):
    """nn.TransformerEncoder with embeddings, mean pooling and a head."""

    def __init__(self, vocab_size: int, n_labels: int, max_len: int) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = (
            nn.Embedding(vocab_size, D_MODEL),
            nn.Embedding(max_len, D_MODEL),
        )
        layer = nn.TransformerEncoderLayer(
            D_MODEL, N_HEADS, 4 * D_MODEL, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, N_LAYERS, nn.LayerNorm(D_MODEL), enable_nested_tensor=False)
        self.head = nn.Linear(D_MODEL, n_labels)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        x = self.encoder(x, src_key_padding_mask=~keep)
        weights = keep[:, :, None].float()
        return self.head((x * weights).sum(dim=1) / weights.sum(dim=1))


def build_estimator(task: str, n_steps: int) -> tuple[Any, TrainingData]:
    """Return the NumPy model of a task, and its training data."""
    config = Config(
        model=MODEL_CONFIG,
        tokenizer=TokenizerConfig(kind=TOKENIZER_KINDS[task]),
        data=DataConfig(max_len=64 if task == "generate" else 0),
        train=TrainConfig(max_steps=n_steps, batch_tokens=1_024, schedule="constant", lr=1e-3),
    )
    if task == "generate":
        language_model = scratch.LanguageModel(config)
        return language_model, language_model.prepare_data(builtin_sets.load_text("builtin:stories"))
    sources, targets = (
        list(side) for side in zip(*builtin_sets.load_pairs(f"builtin:{BUILTIN_SETS[task]}"), strict=True)
    )
    estimator: Any = scratch.TextClassifier(config) if task == "classify" else scratch.Translator(config)
    return estimator, estimator.prepare_data(sources, targets)


def build_plain_step(task: str, estimator: Any, training_data: TrainingData) -> Callable[[], Tensor]:
    """Return a training step of plain PyTorch over the same batches."""
    vocab_size, max_len = estimator.tokenizer.vocab_size, estimator.config.data.max_len
    model = {
        "classify": lambda: PlainMeanClassifier(vocab_size, len(estimator.config.data.labels), max_len),
        "generate": lambda: PlainLM(vocab_size, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL, max_len),
        "translate": lambda: PlainTranslator(vocab_size, D_MODEL, N_LAYERS, N_HEADS, 0.1),
    }[task]()

    def inputs() -> tuple[tuple[Any, ...], Tensor]:
        arrays = training_data.make_batch(next(training_data.index_batches)).inputs
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items() if array is not None}
        if task == "classify":
            return (tensors["tokens"], tensors.get("keep", torch.ones_like(tensors["tokens"]) > 0)), tensors[
                "labels"
            ]
        if task == "generate":
            return (tensors["tokens"],), tensors["expected"]
        return (tensors["source"], tensors["target"]), tensors["expected"]

    return build_train_step(model, inputs, bf16=False)


def compare(report: BenchmarkReport, folder: Path, task: str) -> None:
    n_steps = 2 if report.smoke else 10
    estimator, training_data = build_estimator(task, n_steps)
    settings: dict[str, Any] = {
        f"model.{name}": getattr(MODEL_CONFIG, name) for name in ("d_model", "n_layers", "n_heads")
    }
    settings |= {"tokenizer.kind": TOKENIZER_KINDS[task], "data.max_len": estimator.config.data.max_len}
    with open_trainer(report, folder, task, "", **settings) as trainer:
        contestants = {
            "triform scratch": lambda: estimator.run_training(training_data),
            "triform": build_trainer_run(trainer, n_steps),
            "torch.nn eager": build_peer_run(build_plain_step(task, estimator, training_data), n_steps),
        }
        report.measure(
            f"{task}, builtin:{BUILTIN_SETS[task]}",
            contestants,
            2 if report.smoke else 7,
            units=n_steps,
            unit="steps",
        )


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("scratch", parse_options(__doc__, [*(arguments or []), "--device", "cpu"]))
    with tempfile.TemporaryDirectory() as folder:
        for task in BUILTIN_SETS:
            compare(report, Path(folder), task)
    report.write()


if __name__ == "__main__":
    main()
