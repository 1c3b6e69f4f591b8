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
from cases import Case, cases
from material import Material, call

LONGEST = 30  # seconds an input may take
MOST_MEMORY = 4 << 30  # bytes of the whole process


class Hang(BaseException):
    """An input took too long."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise inside what takes too long; where even that does not help, end the process with a traceback."""

    def late(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    faulthandler.dump_traceback_later(4 * LONGEST, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def memory_in_use() -> int:
    """The most that this process had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_memory() -> None:
    """Beyond the limit and a little more there is none, so that a bad input cannot take the machine with it."""
    status = Path("/proc/self/status")
    if status.exists():
        now = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmSize"))
        resource.setrlimit(resource.RLIMIT_AS, (now * 1024 + MOST_MEMORY + (1 << 30),) * 2)


@dataclass
class Tally:
    """What came of the inputs so far."""

    inputs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    places: Counter[str] = field(default_factory=Counter)  # by kind and place, to print each once
    slowest: float = 0.0

    def add(self, case: Case, kind: str, place: str) -> None:
        self.failures[kind] += 1
        self.places[f"{kind}: {place}"] += 1
        if self.places[f"{kind}: {place}"] == 1:
            shown = " ".join(map(repr, case.arguments))
            print(
                f"{kind} ({case.surface}, input {self.inputs}): {place}\n    triform {shown[:400]}",
                file=sys.__stdout__,
            )

    @property
    def summary(self) -> str:
        codes = ", ".join(f"{count:,} exit {code}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.inputs:,} inputs ({codes}): {self.failures['traceback']:,} tracebacks, "
            f"{self.failures['not one line']:,} not one line, {self.failures['hang']:,} hangs, "
            f"{self.failures['memory']:,} over memory; "
            f"slowest {self.slowest:.1f} s, peak memory {memory_in_use() / 2**30:.2f} GiB"
        )


def place_of(error: BaseException) -> str:
    """The error and the last line of Triform's own that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}src{os.sep}triform{os.sep}" in frame.filename] or frames
    name = own[-1].filename.rpartition(f"{os.sep}triform{os.sep}")[2]
    return f"{type(error).__name__} at {name}:{own[-1].lineno}"


def run_case(case: Case, folder: Path, tally: Tally) -> None:
    """Write its files, run its command, note how that ended."""
    tally.inputs += 1
    began, before = time.perf_counter(), memory_in_use()
    try:
        arguments = case.write(folder)
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call(arguments, case.stdin)
        tally.codes[str(answer.code)] += 1
        lines = answer.err.removesuffix("\n").split("\n")
        if answer.code == 2 and not (lines and lines[-1].startswith("triform: ")):
            tally.add(case, "not one line", answer.err[-200:])
        elif answer.code not in (0, 1, 2):
            tally.add(case, "traceback", f"exit code {answer.code}: {answer.err[-200:]}")
    except Hang:
        tally.add(case, "hang", f"longer than {LONGEST} s")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        tally.add(case, "traceback", place_of(error))
        if os.environ.get("FUZZ_TRACEBACKS"):
            traceback.print_exc(file=sys.__stdout__)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally.slowest = max(tally.slowest, time.perf_counter() - began)
    if before <= MOST_MEMORY < memory_in_use():
        tally.add(case, "memory", f"{memory_in_use() / 2**30:.1f} GiB")


def fuzz(inputs: int, number: int, folder: Path, *, every: int = 0) -> Tally:
    """So many inputs, the same ones for the same number."""
    os.environ["TRIFORM_CACHE"] = str(folder / "cache")
    material, tally = Material(folder / "material"), Tally()
    kept = Path.cwd()
    os.chdir(folder)

    @seed(number)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(material))
    def one(case: Case) -> None:
        run_case(case, folder / "case", tally)
        if every and tally.inputs % every == 0:
            print(tally.summary, file=sys.__stdout__, flush=True)

    try:
        one()
    finally:
        os.chdir(kept)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        limit_memory()
        tally = fuzz(asked.inputs, asked.seed, Path(folder), every=1000)
    print("\nfailures by place:" if tally.places else "\nno failures")
    for place, count in tally.places.most_common():
        print(f"{count:7,}  {place}")
    print(tally.summary)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
