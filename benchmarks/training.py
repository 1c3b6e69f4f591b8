"""A training step in the real trainer, logging included, beside `torch.nn`, plain PyTorch and `transformers`.

Each contestant learns in turn for some steps at a time from batches of one shape: ours by its trainer, the peers
scripts do it, with AdamW, clipping and cross entropy in float32. `--only` takes some of: character, words, sets
(R3's four translators), shakespeare, gpt2. On a CPU only `character` and `words` are run.
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

from benchmarks.board import Board, options_of
from benchmarks.plain import PlainGPT, PlainLM, PlainTranslator, stepper
from triform.launch import Options, collect, set_up, train
from triform.settings import build
from triform.training.folder import RunFolder
from triform.training.trainer import Trainer

PARTS = ("character", "words", "sets", "shakespeare", "gpt2")
SHAKESPEARE = {"d_model": 384, "n_layers": 6, "n_heads": 6, "d_ff": 1536, "dropout": 0.2}
Work = Callable[[], Any]


def words(path: Path, n_words: int, n_kinds: int, line: int, columns: int = 1) -> str:
    """A file of words drawn as words are, a few often and most seldom, so many to a line and column."""
    rng = np.random.default_rng(0)
    drawn = np.minimum(rng.zipf(1.2, size=n_words) - 1, n_kinds - 1)
    drawn[:n_kinds] = np.arange(n_kinds)  # each at least once
    rows = drawn[: len(drawn) // (line * columns) * line * columns].reshape(-1, columns, line)
    lines = ("\t".join(" ".join(f"w{word}" for word in cell) for cell in row) for row in rows.tolist())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def characters(path: Path, n: int) -> str:
    """A text of 61 kinds of characters, which with the four special tokens are tiny Shakespeare's 65."""
    kinds = [chr(code) for code in range(ord("0"), ord("0") + 60)] + ["\n"]
    path.write_text("".join(np.random.default_rng(0).choice(kinds, size=n)), encoding="utf-8")
    return str(path)


@contextmanager
def trainer_of(board: Board, folder: Path, task: Any, preset: str, **settings: Any) -> Iterator[Trainer]:
    """The real one, with its run folder, its metrics file and its progress; it neither validates nor saves."""
    pace = {"train.max_steps": 10**7, "train.epochs": 0.0, "train.eval_every": 10**7}
    pace |= {"train.checkpoint_every": 10**7, "train.log_every": 50, "data.valid_fraction": 0.0}
    asked = collect(task, preset, None, pace | {"data.header": "no"} | settings)
    run = RunFolder(Path(tempfile.mkdtemp(dir=folder)))
    trainer, _ = set_up(build(asked), run, Options(device=board.device.type, quiet=True), resume=False)
    with trainer.learner.running():
        trainer.begin()
        yield trainer


def ours(trainer: Trainer, steps: int) -> Work:
    def work() -> None:
        for _ in range(steps):
            trainer.step()
            trainer.after_step()

    return work


def theirs(step: Callable[[], Tensor], steps: int) -> Work:
    def work() -> None:
        for _ in range(steps):
            step()

    return work


def drawn(board: Board, rows: int, width: int, kinds: int) -> Callable[[], tuple[tuple[Tensor, ...], Tensor]]:
    """Windows out of a stream on the device, as good scripts have it."""
    stream = torch.randint(0, kinds, (1 << 20,), device=board.device)
    places = torch.arange(width + 1, device=board.device)

    def inputs() -> tuple[tuple[Tensor, ...], Tensor]:
        starts = torch.randint(0, len(stream) - width - 1, (rows,)).to(board.device)
        table = stream[starts[:, None] + places]
        return (table[:, :-1],), table[:, 1:]

    return inputs


def character(board: Board, folder: Path) -> None:
    """R1's model; on a CPU also one of 0.8M, 12 × 64 tokens."""
    text = characters(folder / "text.txt", 300_000)
    steps = 2 if board.quick else 100 if board.cuda else 20
    with trainer_of(board, folder, "generate", "shakespeare-char", **{"data.train": text}) as trainer:
        plain = stepper(
            PlainLM(65, 64, 4, 4, 256, 32).to(board.device), drawn(board, 16, 32, 65), half=False, clip=0
        )
        who = {"triform": ours(trainer, steps), "torch.nn eager": theirs(plain, steps)}
        board.race("R1's character model, 16 × 32", who, 2 if board.quick else 7, units=steps, unit="steps")
    if board.cuda:
        return
    size = {"d_model": 128, "n_layers": 4, "n_heads": 4, "d_ff": 512, "dropout": 0.0}
    settings = {f"model.{name}": value for name, value in size.items()}
    settings |= {"data.train": text, "data.max_len": 64, "tokenizer.kind": "char", "train.batch_size": 12}
    with trainer_of(board, folder, "generate", "", **settings) as trainer:
        gpt = PlainGPT(65, 128, 4, 4, 64, 0.0)
        plain = stepper(gpt, drawn(board, 12, 64, 65), half=False)
        who = {"triform": ours(trainer, steps), "plain PyTorch eager": theirs(plain, steps)}
        board.race("0.8M character model, 12 × 64", who, 2 if board.quick else 7, units=steps * 768, unit="tokens")


def word_model(board: Board, folder: Path) -> None:
    """R4's language model, with its 5,755 words."""
    text = words(folder / "words.txt", 60_000, 5_751, 20)
    steps = 2 if board.quick else 100 if board.cuda else 10
    with trainer_of(board, folder, "generate", "speeches-lm", **{"data.train": text}) as trainer:
        model = PlainLM(5_755, 64, 4, 2, 100, 32).to(board.device)
        plain = stepper(model, drawn(board, 16, 32, 5_755), half=False, clip=0)
        who = {"triform": ours(trainer, steps), "torch.nn eager": theirs(plain, steps)}
        board.race("R4's language model, 16 × 32", who, 2 if board.quick else 7, units=steps, unit="steps")


def sets(board: Board, folder: Path) -> None:
    """R3's four translators, 16 pairs of 32 tokens a side."""
    pairs = words(folder / "pairs.tsv", 2 * 31 * 3_000, 7_996, 31, columns=2)
    steps = 1 if board.quick else 20
    for number, (layers, heads, width, dropout) in enumerate(
        [(2, 8, 512, 0.1), (4, 8, 512, 0.2), (4, 12, 768, 0.2), (6, 12, 768, 0.1)], 1
    ):
        settings = {"data.train": pairs, "tokenizer.kind": "word"}
        with trainer_of(board, folder, "translate", f"ted-set{number}", **settings) as trainer:
            model = PlainTranslator(8_000, width, layers, heads, dropout).to(board.device)
            fixed = torch.randint(0, 8_000, (16, 32), device=board.device)
            plain = stepper(model, lambda fixed=fixed: ((fixed, fixed), fixed), half=False)
            who = {"triform": ours(trainer, steps), "nn.Transformer eager": theirs(plain, steps)}
            board.race(f"R3, set {number}, 16 × 32", who, 1 if board.quick else 5, units=steps, unit="steps")


def shakespeare(board: Board, folder: Path) -> None:
    """10.7M parameters, 64 × 256 characters, 5,000 steps with an evaluation every 250: the whole command."""
    text = characters(folder / "characters.txt", 1_100_000)
    n_steps = 4 if board.quick else 5_000
    begin = time.perf_counter()
    train(
        "generate", data={"train": text, "max_len": 256}, tokenizer={"kind": "char"}, model=SHAKESPEARE,
        train={"batch_size": 2 if board.quick else 64, "max_steps": n_steps, "eval_every": 250, "lr": 1e-3},
        out=folder / "shakespeare", device=board.device.type, quiet=True,
    )  # fmt: skip
    board.note(f"10.7M character model, {n_steps} steps", seconds=time.perf_counter() - begin)


def gpt2(board: Board, folder: Path) -> None:
    """GPT-2's 124M, 1,024 tokens, bf16."""
    kinds, width, rows = (200, 32, 2) if board.quick else (50_257, 1024, 16)
    text = words(folder / "gpt2.txt", 20 * kinds if board.quick else 3_000_000, kinds - 4, 100)
    steps = 1 if board.quick else 10
    settings = {"data.train": text, "data.max_len": width, "tokenizer.kind": "word", "model.dropout": 0.0}
    settings |= {"train.batch_size": rows, "train.lr": 6e-4, "train.betas": (0.9, 0.95), "train.weight_decay": 0.1}
    if board.quick:
        settings |= {"model.n_layers": 1}
    inputs = drawn(board, rows, width, kinds)
    layers = 1 if board.quick else 12
    plain = PlainGPT(kinds if board.quick else 50_304, 768, layers, 12, width, 0.0).to(board.device)
    fused = {"fused": True} if board.cuda else {}
    who = {"plain PyTorch compiled": theirs(stepper(plain, inputs, half=True, compiled=True, **fused), steps)}
    who |= of_transformers(board, inputs, kinds, layers, width, steps)
    with trainer_of(board, folder, "generate", "gpt2-small", **settings) as trainer:
        who = {"triform": ours(trainer, steps)} | who
        tokens = steps * rows * width
        board.race(f"GPT-2, {rows} × {width}", who, 1 if board.quick else 3, units=tokens, unit="tokens")


def of_transformers(
    board: Board,
    inputs: Callable[[], tuple[tuple[Tensor, ...], Tensor]],
    kinds: int,
    layers: int,
    width: int,
    steps: int,
) -> dict[str, Work]:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        board.skip("transformers", "not installed")
        return {}
    config = GPT2Config(
        vocab_size=kinds, n_layer=layers, n_positions=width, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = GPT2LMHeadModel(config).to(board.device)
    fused = {"fused": True} if board.cuda else {}
    step = stepper(model, inputs, half=True, compiled=True, logits=lambda out: out.logits, **fused)
    return {"transformers compiled": theirs(step, steps)}


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some of the parts")
    asked = parser.parse_args(arguments)
    board = Board("training", asked)
    parts = {"character": character, "words": word_model, "sets": sets, "shakespeare": shakespeare, "gpt2": gpt2}
    chosen = asked.only or (PARTS if board.cuda else PARTS[:2])
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            parts[name](board, Path(folder))
    board.write()


if __name__ == "__main__":
    main()
