"""Processes that have imported torch and Triform when they start, which otherwise takes seconds for each of them.

They are forked from a server that only imports modules: tests of a worker share it, and no thread or state of the
tests is in it. What a test does in such a process, for example being killed, is as in any other process.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

# Modules that a training run imports when it needs them. Those that are not installed are skipped.
IMPORTED = [
    "triform.launch", "triform.cli.main", "triform.experiments.search.runner", "torch._dynamo",
    "torch.distributed.fsdp", "sklearn.linear_model", "sklearn.feature_extraction.text", "optuna", "sqlalchemy",
    "psycopg",
]  # fmt: skip


RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def process_context() -> ForkServerContext:
    """Return the context whose processes have imported torch and Triform."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)  # of no effect if the server runs, which has the same modules
    hidden = {name: os.environ.pop(name) for name in RANK_VARIABLES if name in os.environ}
    try:
        ensure_running()  # the server and its processes keep the environment of this moment
    finally:
        os.environ.update(hidden)
    return context


def start_process(
    target: Callable[..., object],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> ForkServerProcess:
    """Start `target(*arguments)`, with more environment variables and with its output at the end of a file."""
    variables = dict(os.environ) | dict(environment or {})
    process = process_context().Process(target=_run, args=(target, arguments, variables, log_file))
    process.start()
    return process


def run_script(script: str, *arguments: str) -> None:
    """In a process of its own: do what `python SCRIPT ARGUMENTS` does."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def run_module(module: str, *arguments: str) -> None:
    """In a process of its own: do what `python -m MODULE ARGUMENTS` does."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def join_all(processes: Sequence[ForkServerProcess], seconds: float) -> list[int | None]:
    """Wait for processes and return their exit codes. If one fails or the time is over, all are killed."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = [running.pop(sentinel) for sentinel in wait(list(running), seconds)]  # type: ignore[call-overload, arg-type]
        for process in ended:
            process.join()
        if not ended or any(process.exitcode for process in ended):
            for process in running.values():
                process.kill()
    return [process.exitcode for process in processes]


def run_ranks(
    n_processes: int,
    target: Callable[..., object],
    *arguments: str,
    log_file: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 400,
) -> list[int | None]:
    """Run `target(*arguments)` in processes that find each other as those of torchrun do; return their codes."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": str(n_processes), **(environment or {})}
    processes = [
        start_process(
            target, *arguments, environment=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, log_file=log_file
        )
        for rank in range(n_processes)
    ]
    return join_all(processes, seconds)


def run_python(
    command: Sequence[str], *, env: Mapping[str, str], log_file: Path, **_: object
) -> subprocess.CompletedProcess[bytes]:
    """Do what `subprocess.run` does with `python -m MODULE ARGUMENTS` or torchrun; its output is in a file, too."""
    assert list(command[:2]) == [sys.executable, "-m"]
    log_file.unlink(missing_ok=True)
    if command[2] == "torch.distributed.run":
        from torch.distributed.run import parse_args

        options = parse_args(list(command[3:]))
        assert options.module
        n_processes, arguments = int(options.nproc_per_node), options.training_script_args
        exit_codes = run_ranks(
            n_processes, run_module, options.training_script, *arguments, log_file=log_file, environment=env
        )
    else:
        exit_codes = join_all([start_process(run_module, *command[2:], environment=env, log_file=log_file)], 400)
    output = log_file.read_bytes()
    assert not any(exit_codes), output.decode()
    return subprocess.CompletedProcess(command, 0, output)


def _run(
    target: Callable[..., object], arguments: Sequence[Any], environment: Mapping[str, str], log_file: Path | None
) -> None:
    import torch

    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    if log_file is not None:
        handle = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    target(*arguments)
