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
from mutations import gzip_bytes
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
class CommandResult:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def run_command(arguments: list[str], stdin: bytes = b"") -> CommandResult:
    """`triform ARGUMENTS` in this process; what is no answer of a command is raised."""
    from triform.cli.main import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # as strict as a file or a pipe
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    saved_streams = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["triform", *arguments], io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code: object = 0
    except SystemExit as exit_error:
        code = exit_error.code
    finally:
        sys.argv, sys.stdin = saved_streams
    outputs = [(stream.flush(), stream.buffer.getvalue().decode())[1] for stream in (out, err)]
    return CommandResult(code if isinstance(code, int) else 0 if code is None else 1, *outputs)


def run_checked(*arguments: object) -> None:
    result = run_command([str(argument) for argument in arguments])
    assert result.code == 0, (arguments, result.err)


class SeedFiles:
    """Everything that mutations begin with, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = self._write_data(folder / "data")
        rows, text, pairs = (self.data / name for name in ("rows.csv", "story.txt", "pairs.tsv"))
        self.classifier, self.language_model, self.translator = (
            folder / name for name in ("classify", "generate", "translate")
        )
        run_checked("train", "classify", *TINY, "--data", rows, "--out", self.classifier)
        size_options = ("--set", "data.max_len=16", "--set", "tokenizer.kind=char")
        run_checked("train", "generate", *TINY, *size_options, "--data", text, "--out", self.language_model)
        run_checked("train", "translate", *TINY, "--data", pairs, "--out", self.translator)
        self.lora = folder / "lora"
        run_checked("train", "classify", "--from", self.classifier, "--data", rows, "--out", self.lora,
             "--device", "cpu", "--set", "train.lora_rank=2", "--set", "train.max_steps=1")  # fmt: skip
        self.published = self._export_published_models(folder / "published")
        self.tokenizers = self._copy_tokenizers(folder / "tokenizers")
        self.vectors = self._write_vectors(folder / "vectors")
        self.toml = self._write_toml(folder / "toml", rows)

    @staticmethod
    def _write_data(folder: Path) -> Path:
        folder.mkdir(parents=True)
        nouns = ("soup", "bread", "room", "view", "music")
        rows = [
            (
                f"the {nouns[index % 5]} was {'lovely' if index % 2 else 'awful'} on day {index % 7}",
                "good" if index % 2 else "bad",
            )
            for index in range(40)
        ]
        words = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"), ("five", "cinq"))
        pairs = [
            (
                f"{words[index % 5][0]} and {words[index // 5 % 5][0]}",
                f"{words[index % 5][1]} et {words[index // 5 % 5][1]}",
            )
            for index in range(40)
        ]
        contents = {
            "rows.csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
            "rows.tsv": "".join(f"{text}\t{label}\n" for text, label in rows),
            "rows.jsonl": "".join(f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in rows),
            "pairs.tsv": "".join(f"{source}\t{target}\n" for source, target in pairs),
            "pairs.jsonl": "".join(
                f'{{"source": "{source_text}", "target": "{target_text}"}}\n' for source_text, target_text in pairs
            ),
            "story.txt": "".join(
                f"{index % 7} birds sat in the tree, and {index % 5} flew away.\n" for index in range(40)
            ),
        }
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
            (folder / f"{name}.gz").write_bytes(gzip_bytes(content.encode()))
        return folder

    def _export_published_models(self, folder: Path) -> Path:
        """A model of each family, made by Triform's own export; a GPT-2 in parts as well."""
        for family, (task, data, settings) in FAMILIES.items():
            set_options = [part for setting in settings for part in ("--set", setting)]
            run = folder / "runs" / family
            run_checked(
                "train",
                task,
                *TINY,
                "--set",
                "data.max_len=16",
                *set_options,
                "--data",
                self.data / data,
                "--out",
                run,
            )
            run_checked("convert", "export", run, "--to", "hf", "--out", folder / family)
        parts = Path(shutil.copytree(folder / "gpt2", folder / "parts"))
        part = "model-00001-of-00001.safetensors"
        (parts / "model.safetensors").rename(parts / part)
        with safe_open(parts / part, framework="np") as file:
            index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(file.keys(), part)}
        (parts / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        return folder

    def _copy_tokenizers(self, folder: Path) -> Path:
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
    def _write_vectors(folder: Path) -> Path:
        import numpy as np

        from triform.vectors.files import write_vectors

        folder.mkdir()
        words = ["soup", "bread", "room", "view", "music"]
        matrix = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
        for name in ("words.txt", "words.bin", "words.safetensors"):
            write_vectors(folder / name, words, matrix, {})
        return folder

    @staticmethod
    def _write_toml(folder: Path, rows: Path) -> Path:
        folder.mkdir()
        common = "[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\nd_ff = 16\n[train]\nmax_steps = 1\nlr = 0.01\n"
        (folder / "config.toml").write_text(f'task = "classify"\nseed = 1\n[data]\ntrain = "{rows}"\n{common}')
        model_lines, train_lines = "n_heads = 2\nn_layers = 1\n", "max_steps = 1\n"
        study = f"[common.train]\n{train_lines}" + "".join(
            f"[variants.{name}.model]\nd_model = {width}\n{model_lines}[variants.{name}.train]\n{train_lines}"
            for name, width in (("small", 8), ("large", 16))
        )
        (folder / "study.toml").write_text(
            f'task = "classify"\nseeds = 1\n[common.data]\ntrain = "{rows}"\n{study}'
        )
        return folder
