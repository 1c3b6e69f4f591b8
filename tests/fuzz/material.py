"""Good files to begin with: data, three tiny runs, an adapter, an unfinished run, tokenizers, published models."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer
from mutations import zipped
from safetensors import safe_open

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


# The task, the data and the settings that each family of published models is made with.
FAMILIES = {
    "gpt2": (
        "generate",
        "story.txt",
        ("model.activation=gelu_tanh", "model.head_bias=false", "tokenizer.kind=bpe"),
    ),
    "llama": (
        *("generate", "story.txt"),
        (
            *("model.norm=rms", "model.positions=rotary", "model.activation=swiglu", "model.bias=false"),
            *("model.qkv_bias=false", "model.head_bias=false", "tokenizer.kind=bpe"),
        ),
    ),
    "distilbert": (
        *("classify", "rows.csv"),
        (
            *("model.norm_position=post", "model.final_norm=false", "model.embedding_norm=true"),
            *("model.norm_eps=1e-12", "model.pooling=first", "model.head_hidden=16"),
        ),
    ),
    "marian": (
        *("translate", "pairs.tsv"),
        ("model.norm_position=post", "model.final_norm=false", "model.positions=sinusoidal_halves"),
    ),
}


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
        self.published = self._published(folder / "published")
        self.tokenizers = self._tokenizers(folder / "tokenizers")
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

    def _published(self, folder: Path) -> Path:
        """A model of each family, made by Triform's own export; a GPT-2 in parts as well."""
        for family, (task, data, settings) in FAMILIES.items():
            sets = [part for setting in settings for part in ("--set", setting)]
            run = folder / "runs" / family
            done("train", task, *TINY, "--set", "data.max_len=16", *sets, "--data", self.data / data, "--out", run)
            done("convert", "export", run, "--to", "hf", "--out", folder / family)
        parts = Path(shutil.copytree(folder / "gpt2", folder / "parts"))
        part = "model-00001-of-00001.safetensors"
        (parts / "model.safetensors").rename(parts / part)
        with safe_open(parts / part, framework="np") as file:
            index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(file.keys(), part)}
        (parts / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        return folder

    def _tokenizers(self, folder: Path) -> Path:
        """Files of other libraries: a tokenizer.json, GPT-2's pair of files, and BERT's list of pieces."""
        for name, files in {
            "library": ("tokenizer.json", "tokenizer_config.json"),
            "pair": ("vocab.json", "merges.txt", "config.json"),
        }.items():
            (folder / name).mkdir(parents=True)
            for file in files:
                shutil.copyfile(self.published / "gpt2" / file, folder / name / file)
        (folder / "pieces").mkdir()
        letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "the", "soup"]
        (folder / "pieces" / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
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
