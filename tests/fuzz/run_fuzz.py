"""Bad input by the thousand: `python tests/fuzz/run_fuzz.py --inputs 20000`, or `make fuzz`.

Commands run in this process, on tiny models. An input fails that ends in anything but an answer (exit code 0) or a
refusal (1 or 2) of one line, that takes longer than `LONGEST` seconds, or that makes the process take more memory
than `MOST_MEMORY`. Each failure is printed once for its place in the source, with the command that brings it back.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent))
from cases import Case, all_cases
from material import SeedFiles, run_command

MAX_SECONDS = 30  # seconds an input may take
MAX_MEMORY_BYTES = 4 << 30  # bytes of the whole process


class HangError(BaseException):
    """An input took too long."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise inside what takes too long; where even that does not help, end the process with a traceback."""

    def raise_hang(signal_number: int, frame: object) -> None:
        raise HangError

    previous_handler = signal.signal(signal.SIGALRM, raise_hang)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    faulthandler.dump_traceback_later(4 * MAX_SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous_handler)


def peak_memory() -> int:
    """The most that this process had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_memory() -> None:
    """Beyond the limit and a little more there is none, so that a bad input cannot take the machine with it."""
    status = Path("/proc/self/status")
    if status.exists():
        current_kib = next(
            int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmSize")
        )
        resource.setrlimit(resource.RLIMIT_AS, (current_kib * 1024 + MAX_MEMORY_BYTES + (1 << 30),) * 2)


@dataclass
class FuzzResults:
    """What came of the inputs so far."""

    inputs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    failures_by_location: Counter[str] = field(default_factory=Counter)  # by kind and place, to print each once
    slowest: float = 0.0

    def add_failure(self, case: Case, kind: str, location: str) -> None:
        self.failures[kind] += 1
        self.failures_by_location[f"{kind}: {location}"] += 1
        if self.failures_by_location[f"{kind}: {location}"] == 1:
            command_text = " ".join(map(repr, case.arguments))
            print(
                f"{kind} ({case.surface}, input {self.inputs}): {location}\n    triform {command_text[:400]}",
                file=sys.__stdout__,
            )

    @property
    def summary(self) -> str:
        codes = ", ".join(f"{count:,} exit {code}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.inputs:,} inputs ({codes}): {self.failures['traceback']:,} tracebacks, "
            f"{self.failures['not one line']:,} not one line, {self.failures['hang']:,} hangs, "
            f"{self.failures['memory']:,} over memory; "
            f"slowest {self.slowest:.1f} s, peak memory {peak_memory() / 2**30:.2f} GiB"
        )


def failure_location(error: BaseException) -> str:
    """The error and the last line of Triform's own that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if f"{os.sep}src{os.sep}triform{os.sep}" in frame.filename] or frames
    name = own_frames[-1].filename.rpartition(f"{os.sep}triform{os.sep}")[2]
    return f"{type(error).__name__} at {name}:{own_frames[-1].lineno}"


def run_case(case: Case, folder: Path, results: FuzzResults) -> None:
    """Write its files, run its command, note how that ended."""
    results.inputs += 1
    start_time, memory_before = time.perf_counter(), peak_memory()
    try:
        arguments = case.write(folder)
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run_command(arguments, case.stdin)
        results.codes[str(result.code)] += 1
        lines = result.err.removesuffix("\n").split("\n")
        if result.code == 2 and not (lines and lines[-1].startswith("triform: ")):
            results.add_failure(case, "not one line", result.err[-200:])
        elif result.code not in (0, 1, 2):
            results.add_failure(case, "traceback", f"exit code {result.code}: {result.err[-200:]}")
    except HangError:
        results.add_failure(case, "hang", f"longer than {MAX_SECONDS} s")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        results.add_failure(case, "traceback", failure_location(error))
        if os.environ.get("FUZZ_TRACEBACKS"):
            traceback.print_exc(file=sys.__stdout__)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results.slowest = max(results.slowest, time.perf_counter() - start_time)
    if memory_before <= MAX_MEMORY_BYTES < peak_memory():
        results.add_failure(case, "memory", f"{peak_memory() / 2**30:.1f} GiB")


def fuzz(n_inputs: int, random_seed: int, folder: Path, *, log_every: int = 0) -> FuzzResults:
    """So many inputs, the same ones for the same number."""
    os.environ["TRIFORM_CACHE"] = str(folder / "cache")
    seed_files, results = SeedFiles(folder / "material"), FuzzResults()
    previous_folder = Path.cwd()
    os.chdir(folder)

    @seed(random_seed)
    @settings(
        max_examples=n_inputs,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(all_cases(seed_files))
    def run_one(case: Case) -> None:
        run_case(case, folder / "case", results)
        if log_every and results.inputs % log_every == 0:
            print(results.summary, file=sys.__stdout__, flush=True)

    try:
        run_one()
    finally:
        os.chdir(previous_folder)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        limit_memory()
        results = fuzz(options.inputs, options.seed, Path(folder), log_every=1000)
    print("\nfailures by place:" if results.failures_by_location else "\nno failures")
    for location, count in results.failures_by_location.most_common():
        print(f"{count:7,}  {location}")
    print(results.summary)
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
