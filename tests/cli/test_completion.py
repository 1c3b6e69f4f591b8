"""Shell completion: the shell offers commands, options and values, without loading torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELLS = ("bash", "zsh", "fish")
PROGRAM = (
    "import sys; sys.argv[0] = 'triform'\n"
    "from triform.cli.main import main\n"
    "try: main()\n"
    "finally: assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
)


def run_program(*arguments: str, folder: Path, **environment: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True, text=True, cwd=folder, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert completed.stderr == ""
    return completed.stdout


def offer(shell: str, line: str, folder: Path) -> list[str]:
    """What the shell offers at the end of a line."""
    if shell == "bash":
        typed = line.replace("=", " = ").removesuffix(" ") if line.endswith("=") else line.replace("=", " = ")
        words = {"COMP_WORDS": typed.replace(" ", "\n"), "COMP_CWORD": str(typed.count(" "))}
        return run_program(folder=folder, _TRIFORM_COMPLETE="complete_bash", **words).split()
    words = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    out = run_program(folder=folder, _TRIFORM_COMPLETE=f"complete_{shell}", **words)
    if shell == "fish":
        return [row.partition("\t")[0] for row in out.splitlines()]
    return [row.strip("'()").split('"')[1] for row in out.partition("((")[2].splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("triform pred", ["predict"]),
        ("triform tokenizer e", ["encode", "export"]),
        ("triform train --ep", ["--epochs"]),
        ("triform train tra", ["translate"]),
        ("triform train classify --preset gp", ["gpt2-small"]),
        ("triform train classify --preset=gp", ["gpt2-small"]),
        ("triform train classify --set model.norm=rms --preset gp", ["gpt2-small"]),
        ("triform train classify --device c", ["cpu", "cuda"]),
        ("triform train classify --set model.norm_p", ["model.norm_position=pre", "model.norm_position=post"]),
        ("triform train classify --set model.n_la", ["model.n_layers="]),
        ("triform predict runs/mine --set decode.beam", ["decode.beam_size="]),
        ("triform predict runs/mine --set model.n_la", []),
        ("triform data get tiny", ["tinyshakespeare"]),
        ("triform predict runs/m", ["runs/mine"]),
        ("triform train classify --data ", []),  # the shell completes file names
    ],
)
def test_commands_options_and_values_are_offered(tmp_path: Path, line: str, expected: list[str]) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").touch()
    assert offer("bash", line, tmp_path) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_the_offers(tmp_path: Path, shell: str) -> None:
    assert {"train", "predict", "evaluate"} <= set(offer(shell, "triform ", tmp_path))
    prefix = (
        "model.norm_position=" if shell == "bash" else ""
    )  # bash splits words at = and keeps the part before it
    for typed, choices in (("", ["pre", "post"]), ("po", ["post"])):
        values = offer(shell, f"triform train classify --set model.norm_position={typed}", tmp_path)
        assert values == [f"model.norm_position={choice}".removeprefix(prefix) for choice in choices]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_shown_and_installed_for_the_shell_that_runs_the_command(tmp_path: Path, shell: str) -> None:
    program = tmp_path / shell  # the shell is recognised by the name of the process
    shutil.copy(shutil.which("bash") or "/bin/bash", program)
    (tmp_path / "program.py").write_text(PROGRAM)
    for option, expected in (("--show-completion", "_TRIFORM_COMPLETE"), ("--install-completion", "installed in")):
        line = f"{sys.executable} {tmp_path / 'program.py'} {option}; exit $?"
        completed = subprocess.run(
            [str(program), "-c", line],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path)},
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        assert expected in completed.stdout
    scripts = {"bash": ".bash_completions/triform.sh", "zsh": ".zfunc/_triform"}
    script = tmp_path / scripts.get(shell, ".config/fish/completions/triform.fish")
    assert f"_TRIFORM_COMPLETE=complete_{shell}" in script.read_text()
