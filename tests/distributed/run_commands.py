"""Run several commands in each process that torchrun starts: `run_commands.py FOLDER`.

`FOLDER/commands.json` has the arguments of each command. What the commands print is written to `FOLDER/RANK.txt`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import torch

from triform.cli.main import app
from triform.world import join_world


def main(folder: Path) -> None:
    commands = json.loads((folder / "commands.json").read_text())
    with (
        join_world(torch.device("cpu")) as world,
        (folder / f"{world.rank}.txt").open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        for command in commands:
            app(command, prog_name="triform", standalone_mode=False)


main(Path(sys.argv[1]))
