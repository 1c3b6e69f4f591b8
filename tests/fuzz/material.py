"""Good files to begin with: data, three tiny runs, an adapter, an unfinished run, tokenizers, published models."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer
from mutations import zipped

TINY = (
    *(
        "--set",
        "model.d_model=16",
        "--set",
        "model.n_layers=1",
        "--set",
        "model.n_heads=2",
        "--set",
        "model.d_ff=16",
    ),
    *("--set", "train.max_steps=2", "--device", "cpu"),
)


typer.main.get_command = cache(typer.main.get_command)  # which otherwise takes most of the time of each input


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def call(arguments: list[str], stdin: bytes = b"") -> Answer:
    """`triform ARGUMENTS` in this process; what is no answer of a command is raised."""
    from triform.cli.main import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # as strict as a file or a pipe
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    kept = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["triform", *arguments], io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code: object = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv, sys.stdin = kept
    written = [(stream.flush(), stream.buffer.getvalue().decode())[1] for stream in (out, err)]
    return Answer(code if isinstance(code, int) else 0 if code is None else 1, *written)


def done(*arguments: object) -> None:
    answer = call([str(each) for each in arguments])
    assert answer.code == 0, (arguments, answer.err)


class Material:
    """Everything that mutations begin with, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = self._data(folder / "data")
        rows, text, pairs = (self.data / name for name in ("rows.csv", "story.txt", "pairs.tsv"))
        self.classifier, self.writer, self.translator = (
            folder / name for name in ("classify", "generate", "translate")
        )
        done("train", "classify", *TINY, "--data", rows, "--out", self.classifier)
        short = ("--set", "data.max_len=16", "--set", "tokenizer.kind=char")
        done("train", "generate", *TINY, *short, "--data", text, "--out", self.writer)
        done("train", "translate", *TINY, "--data", pairs, "--out", self.translator)
        self.lora = folder / "lora"
        done("train", "classify", "--from", self.classifier, "--data", rows, "--out", self.lora, "--device", "cpu",
             "--set", "train.lora_rank=2", "--set", "train.max_steps=1")  # fmt: skip
        self.published = self._published(folder / "published", text)
        self.vectors = self._vectors(folder / "vectors")
        self.toml = self._toml(folder / "toml", rows)

    @staticmethod
    def _data(folder: Path) -> Path:
        folder.mkdir(parents=True)
        things = ("soup", "bread", "room", "view", "music")
        rows = [
            (f"the {things[n % 5]} was {'lovely' if n % 2 else 'awful'} on day {n % 7}", "good" if n % 2 else "bad")
            for n in range(40)
        ]
        words = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"), ("five", "cinq"))
        pairs = [
            (f"{words[n % 5][0]} and {words[n // 5 % 5][0]}", f"{words[n % 5][1]} et {words[n // 5 % 5][1]}")
            for n in range(40)
        ]
        made = {
            "rows.csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
            "rows.tsv": "".join(f"{text}\t{label}\n" for text, label in rows),
            "rows.jsonl": "".join(f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in rows),
            "pairs.tsv": "".join(f"{source}\t{target}\n" for source, target in pairs),
            "pairs.jsonl": "".join(f'{{"source": "{one}", "target": "{other}"}}\n' for one, other in pairs),
            "story.txt": "".join(f"{n % 7} birds sat in the tree, and {n % 5} flew away.\n" for n in range(40)),
        }
        for name, content in made.items():
            (folder / name).write_text(content, encoding="utf-8")
            (folder / f"{name}.gz").write_bytes(zipped(content.encode()))
        return folder

    @staticmethod
    def _published(folder: Path, text: Path) -> Path:
        """A GPT-2, whole and in parts, made by Triform's own export, with the tokenizer's files."""
        run, sizes = folder / "run", ("--set", "data.max_len=16", "--set", "tokenizer.vocab_size=270")
        like_gpt2 = (
            "--set",
            "model.activation=gelu_tanh",
            "--set",
            "model.head_bias=false",
            "--set",
            "model.d_model=16",
        )
        small = (
            "--set",
            "model.n_layers=1",
            "--set",
            "model.n_heads=2",
            "--set",
            "train.max_steps=1",
            "--device",
            "cpu",
        )
        bpe = ("--set", "tokenizer.kind=bpe")
        done("train", "generate", *sizes, *like_gpt2, *small, *bpe, "--data", text, "--out", run)
        done("convert", "export", run, "--to", "hf", "--out", folder / "gpt2")
        import json
        import shutil

        parts = Path(shutil.copytree(folder / "gpt2", folder / "parts"))
        (parts / "model.safetensors").rename(parts / "model-00001-of-00001.safetensors")
        from safetensors import safe_open

        with safe_open(parts / "model-00001-of-00001.safetensors", framework="np") as file:
            named = dict.fromkeys(file.keys(), "model-00001-of-00001.safetensors")
        index = {"metadata": {"total_size": 1}, "weight_map": named}
        (parts / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        return folder

    @staticmethod
    def _vectors(folder: Path) -> Path:
        import numpy as np

        from triform.vectors.files import write

        folder.mkdir()
        words = ["soup", "bread", "room", "view", "music"]
        matrix = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
        for name in ("words.txt", "words.bin", "words.safetensors"):
            write(folder / name, words, matrix, {})
        return folder

    @staticmethod
    def _toml(folder: Path, rows: Path) -> Path:
        folder.mkdir()
        common = "[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\nd_ff = 16\n[train]\nmax_steps = 1\nlr = 0.01\n"
        (folder / "config.toml").write_text(f'task = "classify"\nseed = 1\n[data]\ntrain = "{rows}"\n{common}')
        small, short = "n_heads = 2\nn_layers = 1\n", "max_steps = 1\n"
        study = f"[common.train]\n{short}" + "".join(
            f"[variants.{name}.model]\nd_model = {width}\n{small}[variants.{name}.train]\n{short}"
            for name, width in (("small", 8), ("large", 16))
        )
        (folder / "study.toml").write_text(
            f'task = "classify"\nseeds = 1\n[common.data]\ntrain = "{rows}"\n{study}'
        )
        return folder
