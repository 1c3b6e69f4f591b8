"""A process that has imported one tree's Triform and forks for each command, so that none waits for torch.

`PYTHONPATH=TREE/src python -P warm_tree.py` reads jobs from standard input and answers on standard output, a JSON
object a line. A job is answered twice: with the `pid` of the command, which leads a process group of its own, and
at its end with its exit `code` (negative: the signal). The fields of a job:

arguments: Those of `python -m triform`.
folder: The working folder.
stdout, stderr: The files that the output is written to.
ranks: The number of processes. Above 1, they find each other as those of torchrun do.
kill_at: A pattern of checkpoint folders, and a number N. The command is killed at its first action on a file after
    a checkpoint of step N or later has appeared.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# Imported by functions of Triform when they need them. Those that are not installed are skipped.
LAZY_IMPORTS = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint", "sklearn.linear_model",
    "sklearn.feature_extraction.text", "scipy.optimize", "scipy.stats", "sacrebleu", "gensim.models", "tokenizers",
)  # fmt: skip
FILE_ACTIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")


def import_everything() -> None:
    """Import all modules of Triform, whatever they are called in this tree."""
    import torch

    import triform

    torch.set_num_threads(1)
    names = [module.name for module in pkgutil.walk_packages(triform.__path__, "triform.")]
    for name in (*LAZY_IMPORTS, *(name for name in names if not name.endswith("__main__"))):
        with suppress(ImportError):
            importlib.import_module(name)


def kill_after_checkpoint(pattern: str, step: int) -> None:
    """Let this process group be killed at its first action on a file after a checkpoint has appeared."""

    def on_event(event: str, _: tuple[Any, ...]) -> None:
        with suppress(OSError):  # another thread removes a folder
            if event in FILE_ACTIONS and any(step_number(path) >= step for path in Path().glob(pattern)):
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(on_event)


def step_number(checkpoint: Path) -> int:
    """Return the last number in the name of a checkpoint."""
    numbers = re.findall(r"\d+", checkpoint.name)
    return int(numbers[-1]) if numbers else -1


def run_command(job: dict[str, Any]) -> None:
    """In a process of its own: do what `python -m triform ARGUMENTS` does, and exit."""
    if job["kill_at"]:
        kill_after_checkpoint(*job["kill_at"])
    sys.argv = ["triform", *job["arguments"]]
    code: object = 0
    try:
        runpy.run_module("triform", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: ends executors, joins threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))  # freeing all modules would take 0.3 seconds


def run_ranks(job: dict[str, Any]) -> None:
    """In a process of its own: fork the processes of a command, wait for them, and exit with the first bad code."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pids = []
    for rank in range(job["ranks"]):
        if pid := os.fork():
            pids.append(pid)
            continue
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(job["ranks"])}
        os.environ.update(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        return run_command(job)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(next((code for code in codes if code), 0))


def start(job: dict[str, Any]) -> int:
    """Fork the process of a job. In that process, this does not return but exits."""
    if pid := os.fork():
        return pid
    os.setsid()
    os.chdir(job["folder"])
    for handle, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if handle else os.O_RDONLY)
        os.dup2(file, handle)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    run_ranks(job) if job["ranks"] > 1 else run_command(job)
    raise AssertionError("the command has not exited")


def main(answers: int, jobs: Sequence[str]) -> None:
    """Answer jobs until standard input is closed."""

    def answer(**values: object) -> None:
        os.write(answers, json.dumps(values).encode() + b"\n")

    import_everything()
    import triform

    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    answer(source=triform.__file__)
    for line in jobs:
        pid = start(json.loads(line))
        answer(pid=pid)
        answer(code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    own_answers = os.dup(1)  # forks and imports print somewhere else
    os.set_inheritable(own_answers, False)
    os.dup2(2, 1)
    main(own_answers, sys.stdin)
