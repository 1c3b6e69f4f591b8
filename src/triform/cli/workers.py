"""Start several workers of one command on this machine. Each worker runs the same command and shares its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from triform.cli.help import DEVICE, option
from triform.formatting import print_message

MAX_WORKERS = 256
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WorkersOption = Annotated[
    int | None,
    option(
        DEVICE,
        "N",
        "Number of processes on this machine that share the work. Run the same command on other machines to "
        "share it with them.",
    ),
]


@contextmanager
def local_workers(arguments: Sequence[str], workers: int | None) -> Iterator[Callable[[], None]]:
    """Run the other workers of a command while this process works inside the `with` block.

    It yields a function that starts them. Call it after the input has been checked, so that only this process
    reports invalid input.

    The processor cores are divided among the workers, and so are the GPUs if there are several. At the end of the
    block, this process waits for the others. If the block raises, they save their runs and stop.

    Args:
        arguments: The command and its options without `--workers`.
        workers: The number of workers with this one; None: the user gave no number.
    """
    from triform.errors import ConfigError
    from triform.world import current_world

    if current_world().size > 1:
        raise ConfigError(
            f"triform {arguments[0]} does not use torchrun; start it without torchrun, "
            "with --workers N for N processes"
        )
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"--workers {workers} must be a number of processes from 1 to {MAX_WORKERS}")
    if workers is None or workers == 1:
        yield lambda: None
        return
    import torch

    from triform.text.parallel import available_cpus

    threads = max(1, available_cpus() // workers)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield lambda: processes.extend(_start_worker(arguments, index, threads) for index in range(1, workers))
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        codes = [process.wait() for process in processes]
        torch.set_num_threads(previous_threads)
    if failed := sum(code != 0 for code in codes):
        print_message(f"{failed} of {workers} workers ended with an error; the others finished the work")


def _start_worker(arguments: Sequence[str], index: int, threads: int) -> subprocess.Popen[bytes]:
    """Start a worker. It reports to standard error; its result is the one that this process prints."""
    command = [sys.executable, "-m", "triform", *arguments, "--workers", "1"]
    environment = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads)) | _choose_gpu(index)
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches only this process, which then asks the others to stop once
    )


def _choose_gpu(index: int) -> dict[str, str]:
    """Return the environment that gives a worker one of several GPUs."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return {"CUDA_VISIBLE_DEVICES": visible[index % count]}
