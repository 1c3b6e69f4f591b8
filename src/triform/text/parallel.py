"""Encode large amounts of text on all cores, and keep the order.

Splitting text into words holds Python's global interpreter lock, so worker processes are used instead of threads.
They are plain child processes that receive text through a pipe: unlike a fork they share no state with the program,
and unlike `multiprocessing` they do not run its main module again. They start only when there is enough text to be
faster. If they cannot start, or die, the text is encoded in this process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import IO

from triform.errors import TriformError
from triform.text.base import Tokenizer
from triform.text.tokens import TokenRows

MIN_PARALLEL_CHARS = 1 << 24  # characters; with less text, starting workers takes longer than it saves
MAX_WORKERS = 8  # processes; the parent could not keep more of them busy
WORKER_ERRORS = (OSError, EOFError, pickle.UnpicklingError)  # raised when a child process has died

_WORKER_CODE = (
    "import os, sys; os.environ['TOKENIZERS_PARALLELISM'] = 'false'; sys.path[:] = {path!r}; "
    "from triform.text.parallel import worker_main; worker_main()"
)


def encode_stream(tokenizer: Tokenizer, parts: Iterable[Sequence[str]], workers: int = 0) -> Iterator[TokenRows]:
    """Yield the encoded rows of each part in order. At most a few parts are in memory.

    Args:
        tokenizer: The tokenizer.
        parts: Lists of texts.
        workers: The number of processes that encode. With 0, there is one for each core, but only if the text is
            long and the tokenizer does not use all cores in one process.

    Yields:
        The tokens of one part.

    Raises:
        DataError: A text contains half of a surrogate pair.
    """
    parts, n_characters = iter(parts), 0
    uses_workers = workers > 1 or (not workers and tokenizer.single_threaded and available_cpus() > 1)
    for part in parts:
        yield tokenizer.encode_rows(part)
        n_characters += sum(map(len, part))
        if uses_workers and (workers or n_characters >= MIN_PARALLEL_CHARS):
            break
    yield from _encode_parallel(tokenizer, parts, workers or min(available_cpus(), MAX_WORKERS))


def available_cpus() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this platform
        return os.cpu_count() or 1


def _encode_parallel(tokenizer: Tokenizer, parts: Iterator[Sequence[str]], n_workers: int) -> Iterator[TokenRows]:
    first = next(parts, None)
    if first is None:
        return
    workers = [EncodeWorker(tokenizer) for _ in range(n_workers)]
    # Each child has one part at a time, so no pipe can fill up.
    pending: deque[tuple[EncodeWorker, Sequence[str]]] = deque()
    round_robin = cycle(workers)
    try:
        worker = next(round_robin)
        worker.send(first)
        pending.append((worker, first))
        for part in parts:  # read while the children are encoding
            if len(pending) == len(workers):
                yield _receive_rows(tokenizer, *pending.popleft())
            worker = next(round_robin)
            worker.send(part)
            pending.append((worker, part))
        while pending:
            yield _receive_rows(tokenizer, *pending.popleft())
    finally:
        for worker in workers:
            worker.close()


class EncodeWorker:
    """A child process that encodes the texts it receives. If it has died, `receive` returns None."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        code = _WORKER_CODE.format(path=[str(Path(entry).absolute()) for entry in sys.path])
        pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=devnull)
        except OSError:
            self._input = self._output = None
            return
        self._input, self._output = self._process.stdin, self._process.stdout
        self.send(tokenizer)

    def send(self, message: object) -> None:
        try:
            if self._input is not None:
                _write_message(self._input, message)
        except WORKER_ERRORS:
            self.close()

    def receive(self) -> object:
        try:
            return pickle.load(self._output) if self._output is not None else None
        except WORKER_ERRORS:
            self.close()
            return None

    def close(self) -> None:
        """Close the pipe, which ends the process, and wait for it."""
        if self._input is None or self._output is None:
            return
        for pipe in (self._input, self._output):
            with suppress(OSError):  # the process died with unread input
                pipe.close()
        self._input = self._output = None
        self._process.wait()


def _write_message(pipe: IO[bytes], message: object) -> None:
    pickle.dump(message, pipe, protocol=5)
    pipe.flush()


def _receive_rows(tokenizer: Tokenizer, worker: EncodeWorker, part: Sequence[str]) -> TokenRows:
    rows = worker.receive()
    return (
        rows if isinstance(rows, TokenRows) else tokenizer.encode_rows(part)
    )  # text that cannot be encoded raises here


def worker_main() -> None:
    """Run a worker: read a tokenizer, then encode part after part until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    try:
        tokenizer: Tokenizer = pickle.load(requests)
        while True:
            part = pickle.load(requests)
            try:
                _write_message(responses, tokenizer.encode_rows(part))
            except TriformError:
                _write_message(responses, None)
    except WORKER_ERRORS:
        return
