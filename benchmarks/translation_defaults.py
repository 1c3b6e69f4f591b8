"""Compare the default translator on a CPU with settings of JoeyNMT in the same time, and with a baseline.

`triform train translate` trains with default settings. Then nn.Transformer in plain PyTorch trains for the same
processor time, which includes the validations of Triform, with two configurations that JoeyNMT publishes:
`transformer_iwslt14_deen_bpe.yaml` for IWSLT 2014 (6 + 6 layers of width 256) and `transformer_small.yaml` (3 + 3
layers of width 64, smaller batches and a warm-up).

The peers are not JoeyNMT itself. They have the tokens and the batches of Triform's run, instead of 32,000 merges
and sentences of at most 62 tokens. They have no validation, and their last weights are used. The plateau schedule
of the IWSLT configuration needs 5 validations, of which there is one in 1,000 steps, so its learning rate stays the
same here. The weights are copied to Triform's model for beam search with JoeyNMT's settings: 5 hypotheses and a
length penalty of 1. Triform translates with its default settings. BLEU and chrF of all are those of sacreBLEU.

`--data SOURCE,TARGET` are the files of training pairs, `--valid SOURCE,TARGET` those with which Triform chooses its
best weights, and `--test SOURCE,TARGET` those to translate. `--pairs N` trains on the first N pairs only.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.defaults import SMOKE_SETTINGS, train_default
from benchmarks.options import build_parser
from benchmarks.peers import copy_torch_transformer
from benchmarks.report import BenchmarkReport
from triform.config import Config
from triform.config.settings import build_config
from triform.data.samplers import BucketSampler
from triform.nn.embedding import build_sinusoidal_table
from triform.nn.loss import IGNORE_INDEX
from triform.run import Run
from triform.tasks.translate import Translate
from triform.tasks.translation_data import TranslationBatch, TranslationDataset

BUILT_IN = {"train": "builtin:numbers", "valid": "builtin:numbers/valid", "test": "builtin:numbers/test"}


@dataclass(frozen=True)
class JoeySettings:
    """Settings of JoeyNMT. With a warm-up, the learning rate is the factor of the schedule noam."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    dropout: float
    label_smoothing: float
    batch_tokens: int
    lr: float
    n_warmup_steps: int = 0
    beta2: float = 0.999
    beam_size: int = 5
    length_penalty: float = 1.0

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        if not self.n_warmup_steps:
            return self.lr
        return self.lr * self.d_model**-0.5 * min(step**-0.5, step * self.n_warmup_steps**-1.5)


PEERS = {
    "JoeyNMT's settings for IWSLT": JoeySettings(256, 6, 4, 1_024, 0.3, 0.1, 4_096, 3e-4),
    "JoeyNMT's small settings": JoeySettings(64, 3, 4, 128, 0.1, 0.0, 250, 0.5, n_warmup_steps=1_000),
}
SMOKE_PEERS = {"JoeyNMT's settings, tiny": JoeySettings(16, 1, 2, 32, 0.1, 0.1, 256, 0.5, n_warmup_steps=100)}


class PlainJoeyTranslator(nn.Module):
    """nn.Transformer with pre-norm, sinusoidal positions, and one table for all embeddings and the output."""

    positions: Tensor

    def __init__(self, settings: JoeySettings, vocab_size: int, max_len: int) -> None:
        super().__init__()
        d_model, n_layers = settings.d_model, settings.n_layers
        layer_sizes: dict[str, Any] = {
            "nhead": settings.n_heads,
            "dim_feedforward": settings.d_ff,
            "dropout": settings.dropout,
        }
        layer = nn.TransformerEncoderLayer(d_model, **layer_sizes, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, n_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.transformer = nn.Transformer(
            d_model, **layer_sizes, custom_encoder=encoder, num_decoder_layers=n_layers, batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.scale = math.sqrt(d_model)
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        nn.init.xavier_uniform_(self.token_embedding.weight)
        self.dropout = nn.Dropout(settings.dropout)
        self.register_buffer("positions", build_sinusoidal_table(max_len, d_model))

    def forward(self, source: Tensor, target: Tensor, source_keep: Tensor | None) -> Tensor:
        padding = None if source_keep is None else ~source_keep
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        states = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=future, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return F.linear(states, self.token_embedding.weight)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.token_embedding(tokens) * self.scale + self.positions[: tokens.shape[1]])


def iter_batches(dataset: TranslationDataset, batch_tokens: int) -> Iterator[TranslationBatch]:
    """Yield training batches of similar lengths without an end."""
    sampler = BucketSampler(dataset.lengths, batch_tokens=batch_tokens, seed=0, max_length=dataset.max_len)
    while True:
        yield dataset.batch(sampler.next_batch())


def train_peer(run: Run, settings: JoeySettings, seconds: float) -> tuple[PlainJoeyTranslator, int, float]:
    """Train the peer for a processor time on the pairs of a run. Return it, its steps and its epochs."""
    torch.manual_seed(0)
    data = run.task.data
    dataset = data.build_sample(list(data.training_examples()))
    max_len = run.config.data.max_len
    model = PlainJoeyTranslator(settings, run.task.tokenizer.vocab_size, max_len + 1)  # with the start token
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, settings.beta2))
    n_steps = n_pairs = 0
    started_at = time.process_time()
    for batch in iter_batches(dataset, settings.batch_tokens):
        logits = model(batch.source, batch.decoder_input, batch.source_keep)
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX,
            label_smoothing=settings.label_smoothing,
        )  # fmt: skip
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate(n_steps + 1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        n_steps, n_pairs = n_steps + 1, n_pairs + len(batch.source)
        if time.process_time() - started_at >= seconds:
            break
    return model.eval(), n_steps, n_pairs / len(dataset)


def with_peer_weights(run: Run, settings: JoeySettings, peer_model: PlainJoeyTranslator) -> Run:
    """Return a run that translates with the weights and the beam search of the peer."""
    config = build_config(
        {
            "task": "translate", "data.max_len": run.config.data.max_len, "model.d_model": settings.d_model,
            "model.d_ff": settings.d_ff, "model.n_layers": settings.n_layers, "model.n_heads": settings.n_heads,
            "model.activation": "relu", "model.positions": "sinusoidal", "model.scale_embeddings": True,
            "decode.beam_size": settings.beam_size, "decode.length_penalty": settings.length_penalty,
        },
        Config(),
    )  # fmt: skip
    task = Translate(config, *run.task.tokenizers)
    copy_torch_transformer(peer_model.transformer, task.model)
    with torch.no_grad():
        task.model.embedding.token_embedding.weight.copy_(peer_model.token_embedding.weight)
        nn.init.zeros_(task.model.lm_head.bias)
    task.model.eval()
    return replace(run, task=task)


@torch.inference_mode()
def logit_difference(run: Run, peer_model: PlainJoeyTranslator, text: str) -> float:
    """Return the largest difference of a logit of the peer and its copy, relative to the largest logit."""
    tokens = torch.tensor([run.task.tokenizer.encode(text)])
    logits, peer_logits = run.task.model(tokens, tokens), peer_model(tokens, tokens, None)
    return float((logits - peer_logits).abs().max() / peer_logits.abs().max())


def write_first_pairs(data: str, n_pairs: int, folder: Path) -> str:
    """Write the first pairs of two aligned files to a folder, and return the names of the two new files."""
    names = []
    for side, file in zip(("source", "target"), data.split(","), strict=True):
        with Path(file).open(encoding="utf-8") as lines:
            (folder / side).write_text("".join(islice(lines, n_pairs)), encoding="utf-8")
        names.append(str(folder / side))
    return ",".join(names)


def add_translations(report: BenchmarkReport, title: str, run: Run, test: str, **figures: Any) -> None:
    metrics = run.evaluate(test)
    report.add_figures(title, **{name: metrics[name] for name in ("bleu", "chrf", "loss")}, **figures)


def compare(report: BenchmarkReport, options: argparse.Namespace, folder: Path) -> None:
    data = options.data or BUILT_IN["train"]
    if options.pairs:
        data = write_first_pairs(data, options.pairs, folder)
    valid, test = options.valid or BUILT_IN["valid"], options.test or BUILT_IN["test"]
    settings = SMOKE_SETTINGS if report.smoke else {"train.max_minutes": options.minutes}
    run, seconds = train_default("translate", data, folder / "run", {"valid": valid, **settings})
    model, steps = run.config.model, run.progress()["step"]
    title = f"triform, {model.n_layers} layer{'s' * (model.n_layers > 1)} of width {model.d_model}, {steps} steps"
    add_translations(report, title, run, test, seconds=seconds)
    baseline = run.baselines(test)["wordwise"]
    report.add_figures("word by word", bleu=baseline["bleu"], chrf=baseline["chrf"])
    for name, joey in (SMOKE_PEERS if report.smoke else PEERS).items():
        started_at = time.process_time()
        peer_model, steps, epochs = train_peer(run, joey, seconds)
        peer_seconds = time.process_time() - started_at
        peer_run = with_peer_weights(run, joey, peer_model)
        difference = logit_difference(peer_run, peer_model, next(run.task.data.training_examples()).source)
        figures = {"seconds": peer_seconds, "epochs": epochs, "logit_difference": difference}
        add_translations(report, f"plain PyTorch, {name}, {steps} steps", peer_run, test, **figures)


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="cpu, which these defaults are for")
    parser.add_argument("--data", default="", help="SOURCE,TARGET; without it, a built-in set, which is too easy")
    parser.add_argument("--valid", default="", help="SOURCE,TARGET, to choose the best weights")
    parser.add_argument("--test", default="", help="SOURCE,TARGET, to translate")
    parser.add_argument("--pairs", type=int, default=0, help="train on the first pairs only")
    parser.add_argument("--minutes", type=float, default=0.0, help="train.max_minutes; by default not set")
    options = parser.parse_args(arguments)
    report = BenchmarkReport("translation_defaults", options)
    with tempfile.TemporaryDirectory() as folder:
        compare(report, options, Path(folder))
    report.write()


if __name__ == "__main__":
    main()
