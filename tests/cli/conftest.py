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
class Answer:
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


Command = Callable[..., Answer]


def call(*arguments: object, stdin: str | bytes = "") -> Answer:
    """`triform ARGUMENTS` in this process, its output caught."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["triform", *map(str, arguments)])
        typed = stdin.encode() if isinstance(stdin, str) else stdin
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        else:
            code = 0
    return Answer(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def triform() -> Command:
    """`triform("predict", run, "text")`."""
    return call


@pytest.fixture(scope="session")
def train() -> Command:
    """`train("classify", "--data", file, "--out", run)`: a model so small that it takes a moment."""

    def command(task: str, *arguments: object) -> Answer:
        return call("train", task, *TINY, *arguments)

    return command


def rows(count: int = 40) -> list[tuple[str, str]]:
    things = ("soup", "bread", "room", "view", "music")
    return [
        (f"the {things[n % 5]} was {'lovely' if n % 2 else 'awful'} on day {n % 7}", "good" if n % 2 else "bad")
        for n in range(count)
    ]


def pairs(count: int = 40) -> list[tuple[str, str]]:
    words = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"), ("five", "cinq"))
    return [
        (f"{words[n % 5][0]} and {words[n // 5 % 5][0]}", f"{words[n % 5][1]} et {words[n // 5 % 5][1]}")
        for n in range(count)
    ]


@dataclass(frozen=True)
class Files:
    """Small data of each kind that is in order."""

    csv: Path
    txt: Path
    source: Path
    target: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    found = Files(folder / "rows.csv", folder / "story.txt", folder / "a.en", folder / "a.fr")
    found.csv.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows()))
    found.txt.write_text("".join(f"{n % 7} birds sat in the tree, and {n % 5} flew away.\n" for n in range(40)))
    found.source.write_text("".join(f"{source}\n" for source, _ in pairs()))
    found.target.write_text("".join(f"{target}\n" for _, target in pairs()))
    return found


def _trained(factory: pytest.TempPathFactory, task: str, *arguments: object) -> Path:
    run = factory.mktemp("runs") / task
    answer = call("train", task, *TINY, *arguments, "--out", run)
    assert answer.code == 0, answer.err
    return run


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    """A finished run; tests that change it work on a copy."""
    return _trained(tmp_path_factory, "classify", "--data", files.csv)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    sizes = ("--set", "data.max_len=16", "--set", "tokenizer.kind=char")
    return _trained(tmp_path_factory, "generate", "--data", files.txt, *sizes)


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    return _trained(tmp_path_factory, "translate", "--source", files.source, "--target", files.target)
