"""The README is run: its commands, its Python and its table of presets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triform.config.presets import SIZE_PRESETS, SYSTEM_PRESETS

Command = Callable[..., Any]
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL_BLOCKS, PYTHON_BLOCKS = (
    re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) for language in ("sh", "python")
)
FILES = {
    "reviews.csv": "".join(f"{'good' if n % 2 else 'bad'},word{n % 9} thing {n}\n" for n in range(80)),
    "new.csv": "id,text\n1,word3 thing\n",
    "book.txt.gz": "".join(f"Line {n} of the book says {n * 7 % 11}.\n" for n in range(300)),
    "train.en": "".join(f"one {n} two\n" for n in range(80)),
    "train.fr": "".join(f"un {n} deux\n" for n in range(80)),
    "dev.en": "one 5 two\n" * 4,
    "dev.fr": "un 5 deux\n" * 4,
    "a.txt": "My fellow citizens, this is it.\n" * 20,
    "window.toml": 'task = "classify"\nseeds = 2\n[common]\n"data.train" = "reviews.csv"\n'
    "model = { d_model = 16, n_layers = 1, n_heads = 2 }\ntrain = { max_steps = 3, batch_size = 8 }\n"
    '[variants.full]\n[variants.window8]\n"model.window" = 8\n',
    "b.txt": "We shall go on, my friends.\n" * 20,
}
QUICK_OPTIONS = (
    "--set model.d_model=16 --set model.n_heads=2 --set model.n_layers=1 --max-steps 3"  # the last one counts
)


def run_process(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    completed = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{shlex.join(arguments)}\n{completed.stderr}"
    return completed.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, triform: Command) -> Path:
    import gzip

    folder = tmp_path_factory.mktemp("readme")
    for name, text in FILES.items():
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    book = "".join(FILES[name] for name in ("a.txt", "b.txt"))
    (folder / "speech.txt").write_text(book, encoding="utf-8")
    options = f"--data {folder}/speech.txt --out {folder}/runs/speeches --set data.max_len=8 {QUICK_OPTIONS}"
    assert triform(*shlex.split(f"train generate {options}")).code == 0
    return folder


def test_every_triform_command_of_the_readme_runs(
    folder: Path, triform: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    commands = [line for block in SHELL_BLOCKS for line in block.splitlines() if line.startswith("triform ")]
    assert len(commands) >= 8
    for command in commands:
        arguments = shlex.split(command, comments=True)[1:]
        if arguments[0] == "train":
            arguments += shlex.split(QUICK_OPTIONS)
        result = triform(*arguments)
        assert result.code == 0, f"{command}\n{result.err}"
        assert result.out.strip()


def test_the_python_of_the_readme_runs(folder: Path) -> None:
    for block in PYTHON_BLOCKS:
        assert run_process([sys.executable, "-c", block], folder).count("\n") == 3


def test_the_make_commands_of_the_readme_exist() -> None:
    targets = re.findall(r"^make (\w+)", "\n".join(SHELL_BLOCKS), re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}: " in makefile for target in targets)


def test_the_table_names_every_preset() -> None:
    for name in (*SYSTEM_PRESETS, *SIZE_PRESETS):
        assert f"`{name}`" in README
