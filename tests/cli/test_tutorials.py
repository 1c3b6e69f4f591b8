"""The tutorials work from top to bottom in an empty folder, with small models and few steps."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_docs_commands import BUILTIN_ROWS, PAGES, TINY, find_reason, parse

from triform.data import builtin_sets

Command = Any  # of conftest.py
ORDER = re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\)", PAGES["tutorials/index.md"].read_text(encoding="utf-8"), re.M)
# What a page says, and what a small model needs instead.
SHORTER = (
    (r"--preset tiny", TINY),
    (r"--max-steps \d+ (.*--resume)", r"--max-steps 4 \1"),
    (r"--max-steps \d+ (?!.*--resume)", "--max-steps 2 "),
    (r"--seeds 8", "--seeds 3"),
    (r"seeds = 6", "seeds = 2"),
    (r"max_steps = 300", "max_steps = 2"),
    (r"eval_every = 100", "eval_every = 2"),
    (r"seeds=8", "seeds=3"),
)


@pytest.fixture(autouse=True)
def _small_builtin_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    load_pairs, load_text = builtin_sets.load_pairs, builtin_sets.load_text
    monkeypatch.setattr(builtin_sets, "load_pairs", lambda path: load_pairs(path)[:BUILTIN_ROWS])
    monkeypatch.setattr(builtin_sets, "load_text", lambda path: load_text(path)[:20_000])


def shorten(text: str) -> str:
    """Return a command or a file of a tutorial for a small model."""
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text)
    return text


def run_commands(block: str, triform: Command) -> None:
    """Run the commands of a shell block; `torchrun` is replaced by a single process."""
    for line in block.splitlines():
        command = line.replace(line.partition(" -m ")[0] + " -m ", "") if line.startswith("torchrun ") else line
        if command.startswith("curl "):
            continue  # tests/serving sends the requests
        if command.startswith("sha256sum "):
            assert len({Path(path).read_bytes() for path in command.split()[1:]}) == 1
            continue
        if find_reason(command):
            parse(command)
            continue
        arguments = shlex.split(shorten(command))[1:]
        out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else None
        if arguments[0] == "train" and out and out.exists() and "--resume" not in arguments:
            continue  # a run of an earlier tutorial
        result = triform(*arguments)
        assert result.code == 0, f"{command}\n{result.err}"


def test_the_tutorials_work_in_their_order(
    triform: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {f"tutorials/{name}" for name in (*ORDER, "index.md")} == {
        p for p in PAGES if p.startswith("tutorials/")
    }
    for name in ORDER:
        text = PAGES[f"tutorials/{name}"].read_text(encoding="utf-8")
        module = ModuleType(name)
        for language, block in re.findall(r"^```(sh|toml|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if language == "toml":
                Path(block.splitlines()[0].removeprefix("# ")).write_text(shorten(block), encoding="utf-8")
            elif language == "sh":
                run_commands(block, triform)
            elif name != "serve.md":  # tests/serving starts a server for it
                exec(compile(shorten(block), name, "exec"), module.__dict__)
