"""Time training steps of the real trainer, compared with `torch.nn`, plain PyTorch and `transformers`.

Each contestant trains in turn for some steps on batches of one shape: Triform with its trainer including logging,
the peers like typical scripts, with AdamW, clipping and cross entropy in float32. `--only` selects parts:
character, words, sets (the four TED translators), shakespeare, gpt2. On a CPU the default is `character` and
`words`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.options import build_parser, default_device
from benchmarks.plain import PlainGPT, PlainLM, PlainTranslator, build_train_step
from benchmarks.report import BenchmarkReport
from triform.config.settings import build_config
from triform.launch import RunOptions, build_trainer, resolve_settings, train
from triform.training.run_folder import RunFolder
from triform.training.trainer import Trainer
from triform.world import broadcast_value

PART_NAMES = ("character", "words", "sets", "shakespeare", "gpt2")
SHAKESPEARE_MODEL = {"d_model": 384, "n_layers": 6, "n_heads": 6, "d_ff": 1536, "dropout": 0.2}
TimedFn = Callable[[], Any]


def write_words(path: Path, n_words: int, vocab_size: int, line_words: int, columns: int = 1) -> str:
    """Write a file of words that follow Zipf's law, with a number of words per line and per column."""
    rng = np.random.default_rng(0)
    word_ids = np.minimum(rng.zipf(1.2, size=n_words) - 1, vocab_size - 1)
    word_ids[:vocab_size] = np.arange(vocab_size)  # each at least once
    rows = word_ids[: len(word_ids) // (line_words * columns) * line_words * columns].reshape(
        -1, columns, line_words
    )
    lines = ("\t".join(" ".join(f"w{word}" for word in cell) for cell in row) for row in rows.tolist())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_characters(path: Path, n_characters: int) -> str:
    """Write a text with 61 distinct characters, which makes a vocabulary of 65 with the four special tokens."""
    alphabet = [chr(code) for code in range(ord("0"), ord("0") + 60)] + ["\n"]
    path.write_text("".join(np.random.default_rng(0).choice(alphabet, size=n_characters)), encoding="utf-8")
    return str(path)


@contextmanager
def open_trainer(
    report: BenchmarkReport, folder: Path, task: Any, preset: str, **settings: Any
) -> Iterator[Trainer]:
    """Open the real trainer with its run folder, metrics file and progress, without validation and checkpoints."""
    schedule = {"train.max_steps": 10**7, "train.epochs": 0.0, "train.eval_every": 10**7}
    schedule |= {"train.checkpoint_every": 10**7, "train.log_every": 50, "data.valid_fraction": 0.0}
    assignments = resolve_settings(task, preset, None, schedule | {"data.header": "no"} | settings)
    run = RunFolder(Path(broadcast_value(tempfile.mkdtemp(dir=folder))))  # one folder for all processes
    trainer, _ = build_trainer(
        build_config(assignments), run, RunOptions(device=report.device.type, quiet=True), resume=False
    )
    with trainer.train_step.training_context():
        trainer.start()
        yield trainer


def build_trainer_run(trainer: Trainer, n_steps: int) -> TimedFn:
    def run() -> None:
        for _ in range(n_steps):
            trainer.step()
            trainer.after_step()

    return run


def build_peer_run(step: Callable[[], Tensor], n_steps: int) -> TimedFn:
    def run() -> None:
        for _ in range(n_steps):
            step()

    return run


def build_window_sampler(
    report: BenchmarkReport, batch_size: int, length: int, vocab_size: int
) -> Callable[[], tuple[tuple[Tensor, ...], Tensor]]:
    """Return a function that draws windows from a stream on the device."""
    stream = torch.randint(0, vocab_size, (1 << 20,), device=report.device)
    offsets = torch.arange(length + 1, device=report.device)

    def inputs() -> tuple[tuple[Tensor, ...], Tensor]:
        starts = torch.randint(0, len(stream) - length - 1, (batch_size,)).to(report.device)
        windows = stream[starts[:, None] + offsets]
        return (windows[:, :-1],), windows[:, 1:]

    return inputs


def measure_characters(report: BenchmarkReport, folder: Path) -> None:
    """Time the Shakespeare character model, and on a CPU also a model of 0.8M parameters with 12 × 64 tokens."""
    text = write_characters(folder / "text.txt", 300_000)
    n_steps = 2 if report.smoke else 100 if report.cuda else 20
    with open_trainer(report, folder, "generate", "shakespeare-char", **{"data.train": text}) as trainer:
        plain_step = build_train_step(
            PlainLM(65, 64, 4, 4, 256, 32).to(report.device),
            build_window_sampler(report, 16, 32, 65),
            bf16=False,
            clip=0,
        )
        contestants = {
            "triform": build_trainer_run(trainer, n_steps),
            "torch.nn eager": build_peer_run(plain_step, n_steps),
        }
        report.measure(
            "Shakespeare character model, 16 × 32",
            contestants,
            2 if report.smoke else 7,
            units=n_steps,
            unit="steps",
        )
    if report.cuda:
        return
    model_sizes = {"d_model": 128, "n_layers": 4, "n_heads": 4, "d_ff": 512, "dropout": 0.0}
    settings = {f"model.{name}": value for name, value in model_sizes.items()}
    settings |= {"data.train": text, "data.max_len": 64, "tokenizer.kind": "char", "train.batch_size": 12}
    with open_trainer(report, folder, "generate", "", **settings) as trainer:
        gpt = PlainGPT(65, 128, 4, 4, 64, 0.0)
        plain_step = build_train_step(gpt, build_window_sampler(report, 12, 64, 65), bf16=False)
        contestants = {
            "triform": build_trainer_run(trainer, n_steps),
            "plain PyTorch eager": build_peer_run(plain_step, n_steps),
        }
        report.measure(
            "0.8M character model, 12 × 64",
            contestants,
            2 if report.smoke else 7,
            units=n_steps * 768,
            unit="tokens",
        )


def measure_words(report: BenchmarkReport, folder: Path) -> None:
    """Time the language model of speeches with its 5,755 words."""
    text = write_words(folder / "words.txt", 60_000, 5_751, 20)
    n_steps = 2 if report.smoke else 100 if report.cuda else 10
    with open_trainer(report, folder, "generate", "speeches-lm", **{"data.train": text}) as trainer:
        model = PlainLM(5_755, 64, 4, 2, 100, 32).to(report.device)
        plain_step = build_train_step(model, build_window_sampler(report, 16, 32, 5_755), bf16=False, clip=0)
        contestants = {
            "triform": build_trainer_run(trainer, n_steps),
            "torch.nn eager": build_peer_run(plain_step, n_steps),
        }
        report.measure(
            "Speeches language model, 16 × 32", contestants, 2 if report.smoke else 7, units=n_steps, unit="steps"
        )


def measure_translators(report: BenchmarkReport, folder: Path) -> None:
    """Time the four TED translators with 16 pairs of 32 tokens per side."""
    pairs = write_words(folder / "pairs.tsv", 2 * 31 * 3_000, 7_996, 31, columns=2)
    n_steps = 1 if report.smoke else 20
    for set_number, (n_layers, n_heads, d_model, dropout) in enumerate(
        [(2, 8, 512, 0.1), (4, 8, 512, 0.2), (4, 12, 768, 0.2), (6, 12, 768, 0.1)], 1
    ):
        settings = {"data.train": pairs, "tokenizer.kind": "word"}
        with open_trainer(report, folder, "translate", f"ted-set{set_number}", **settings) as trainer:
            model = PlainTranslator(8_000, d_model, n_layers, n_heads, dropout).to(report.device)
            tokens = torch.randint(0, 8_000, (16, 32), device=report.device)
            plain_step = build_train_step(model, lambda tokens=tokens: ((tokens, tokens), tokens), bf16=False)
            contestants = {
                "triform": build_trainer_run(trainer, n_steps),
                "nn.Transformer eager": build_peer_run(plain_step, n_steps),
            }
            report.measure(
                f"TED set {set_number}, 16 × 32",
                contestants,
                1 if report.smoke else 5,
                units=n_steps,
                unit="steps",
            )


def measure_shakespeare(report: BenchmarkReport, folder: Path) -> None:
    """Time the whole command: 10.7M parameters, 64 × 256 characters, 5,000 steps, an evaluation every 250."""
    text = write_characters(folder / "characters.txt", 1_100_000)
    n_steps = 4 if report.smoke else 5_000
    start_time = time.perf_counter()
    train(
        "generate", data={"train": text, "max_len": 256}, tokenizer={"kind": "char"}, model=SHAKESPEARE_MODEL,
        train={"batch_size": 2 if report.smoke else 64, "max_steps": n_steps, "eval_every": 250, "lr": 1e-3},
        out=folder / "shakespeare", device=report.device.type, quiet=True,
    )  # fmt: skip
    report.add_figures(f"10.7M character model, {n_steps} steps", seconds=time.perf_counter() - start_time)


def measure_gpt2(report: BenchmarkReport, folder: Path) -> None:
    """Time GPT-2 with 124M parameters, 1,024 tokens, bf16."""
    vocab_size, length, batch_size = (200, 32, 2) if report.smoke else (50_257, 1024, 16)
    text = write_words(folder / "gpt2.txt", 20 * vocab_size if report.smoke else 3_000_000, vocab_size - 4, 100)
    n_steps = 1 if report.smoke else 10
    settings = {"data.train": text, "data.max_len": length, "tokenizer.kind": "word", "model.dropout": 0.0}
    settings |= {
        "train.batch_size": batch_size,
        "train.lr": 6e-4,
        "train.betas": (0.9, 0.95),
        "train.weight_decay": 0.1,
    }
    if report.smoke:
        settings |= {"model.n_layers": 1}
    inputs = build_window_sampler(report, batch_size, length, vocab_size)
    n_layers = 1 if report.smoke else 12
    plain_model = PlainGPT(vocab_size if report.smoke else 50_304, 768, n_layers, 12, length, 0.0).to(report.device)
    optimizer_options = {"fused": True} if report.cuda else {}
    contestants = {
        "plain PyTorch compiled": build_peer_run(
            build_train_step(plain_model, inputs, bf16=True, compiled=True, **optimizer_options), n_steps
        )
    }
    contestants |= build_transformers_runs(report, inputs, vocab_size, n_layers, length, n_steps)
    with open_trainer(report, folder, "generate", "gpt2-small", **settings) as trainer:
        contestants = {"triform": build_trainer_run(trainer, n_steps)} | contestants
        n_tokens = n_steps * batch_size * length
        report.measure(
            f"GPT-2, {batch_size} × {length}", contestants, 1 if report.smoke else 3, units=n_tokens, unit="tokens"
        )


def build_transformers_runs(
    report: BenchmarkReport,
    inputs: Callable[[], tuple[tuple[Tensor, ...], Tensor]],
    vocab_size: int,
    n_layers: int,
    length: int,
    n_steps: int,
) -> dict[str, TimedFn]:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        report.add_skipped("transformers", "not installed")
        return {}
    config = GPT2Config(
        vocab_size=vocab_size, n_layer=n_layers, n_positions=length, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = GPT2LMHeadModel(config).to(report.device)
    optimizer_options = {"fused": True} if report.cuda else {}
    step = build_train_step(
        model, inputs, bf16=True, compiled=True, get_logits=lambda output: output.logits, **optimizer_options
    )
    return {"transformers compiled": build_peer_run(step, n_steps)}


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default=default_device(), help="cpu or cuda; by default cuda if there is a GPU")
    parser.add_argument("--only", nargs="+", choices=PART_NAMES, help="run only these parts")
    options = parser.parse_args(arguments)
    report = BenchmarkReport("training", options)
    parts = {
        "character": measure_characters,
        "words": measure_words,
        "sets": measure_translators,
        "shakespeare": measure_shakespeare,
        "gpt2": measure_gpt2,
    }
    selected = options.only or (PART_NAMES if report.cuda else PART_NAMES[:2])
    with tempfile.TemporaryDirectory() as folder:
        for name in selected:
            parts[name](report, Path(folder))
    report.write()


if __name__ == "__main__":
    main()
