"""The commands run inside the test process, so that torch is imported once; three small runs serve every test."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from triform.cli.main import main

TINY = (
    *("--set", "model.d_model=16", "--set", "model.n_layers=1", "--set", "model.n_heads=2"),
    *("--set", "train.max_steps=4", "--device", "cpu"),
)


@dataclass(frozen=True)
class CommandResult:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one line that a refused command leaves; nothing else was said anywhere."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert not self.out
        assert re.fullmatch(r"triform: .+\n", self.err), self.err
        return self.err.removeprefix("triform: ").removesuffix("\n")

    @property
    def last_line(self) -> str:
        """The one line that ends a command refused after it had begun; there is no traceback before it."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert [line.startswith("triform: ") for line in lines] == [False] * (len(lines) - 1) + [True]
        return lines[-1].removeprefix("triform: ")


Command = Callable[..., CommandResult]


def run_command(*arguments: object, stdin: str | bytes = "") -> CommandResult:
    """`triform ARGUMENTS` in this process, its output caught."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["triform", *map(str, arguments)])
        stdin_bytes = stdin.encode() if isinstance(stdin, str) else stdin
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin_bytes), encoding="utf-8"))
        try:
            main()
        except SystemExit as exit_error:
            code = exit_error.code if isinstance(exit_error.code, int) else 0 if exit_error.code is None else 1
        else:
            code = 0
    return CommandResult(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def triform() -> Command:
    """`triform("predict", run, "text")`."""
    return run_command


@pytest.fixture(scope="session")
def train() -> Command:
    """`train("classify", "--data", file, "--out", run)`: a model so small that it takes a moment."""

    def command(task: str, *arguments: object) -> CommandResult:
        return run_command("train", task, *TINY, *arguments)

    return command


def make_classification_rows(count: int = 40) -> list[tuple[str, str]]:
    nouns = ("soup", "bread", "room", "view", "music")
    return [
        (
            f"the {nouns[index % 5]} was {'lovely' if index % 2 else 'awful'} on day {index % 7}",
            "good" if index % 2 else "bad",
        )
        for index in range(count)
    ]


def make_translation_pairs(count: int = 40) -> list[tuple[str, str]]:
    words = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"), ("five", "cinq"))
    return [
        (
            f"{words[index % 5][0]} and {words[index // 5 % 5][0]}",
            f"{words[index % 5][1]} et {words[index // 5 % 5][1]}",
        )
        for index in range(count)
    ]


@dataclass(frozen=True)
class DataFiles:
    """Small data of each kind that is in order."""

    csv: Path
    txt: Path
    source: Path
    target: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> DataFiles:
    folder = tmp_path_factory.mktemp("files")
    data_files = DataFiles(folder / "rows.csv", folder / "story.txt", folder / "a.en", folder / "a.fr")
    data_files.csv.write_text(
        "text,label\n" + "".join(f"{text},{label}\n" for text, label in make_classification_rows())
    )
    data_files.txt.write_text(
        "".join(f"{index % 7} birds sat in the tree, and {index % 5} flew away.\n" for index in range(40))
    )
    data_files.source.write_text("".join(f"{source}\n" for source, _ in make_translation_pairs()))
    data_files.target.write_text("".join(f"{target}\n" for _, target in make_translation_pairs()))
    return data_files


def _train_run(factory: pytest.TempPathFactory, task: str, *arguments: object) -> Path:
    run = factory.mktemp("runs") / task
    result = run_command("train", task, *TINY, *arguments, "--out", run)
    assert result.code == 0, result.err
    return run


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory, files: DataFiles) -> Path:
    """A finished run; tests that change it work on a copy."""
    return _train_run(tmp_path_factory, "classify", "--data", files.csv)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory, files: DataFiles) -> Path:
    sizes = ("--set", "data.max_len=16", "--set", "tokenizer.kind=char")
    return _train_run(tmp_path_factory, "generate", "--data", files.txt, *sizes)


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory, files: DataFiles) -> Path:
    return _train_run(tmp_path_factory, "translate", "--source", files.source, "--target", files.target)
