"""Much text to tokens, a part at a time and in order, on all cores.

Finding words holds Python's lock, so threads would not help: the other cores are reached by processes. These are
plain children that are told what to encode through a pipe: unlike a fork they share no state with whatever the
program does besides, and unlike `multiprocessing` they never run the program's main module again. They start only
when there is enough text to pay for it; if they cannot, or die, the text is encoded here.
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
from triform.text.base import Rows, Tokenizer

ALONE = 1 << 24  # characters that are encoded before other processes are worth starting
MOST = 8  # processes; the one that reads and writes could not keep more of them busy
BROKEN = (OSError, EOFError, pickle.UnpicklingError)  # what talking to a child that died raises

_CHILD = "import sys; sys.path[:] = {path!r}; from triform.text.stream import serve; serve()"


def encode_stream(tokenizer: Tokenizer, parts: Iterable[Sequence[str]]) -> Iterator[Rows]:
    """The rows of each part in turn; memory holds a few parts at most."""
    parts, seen = iter(parts), 0
    for part in parts:
        yield tokenizer.encode_rows(part)
        seen += sum(map(len, part))
        if seen >= ALONE and tokenizer.one_core and cores() > 1:
            break
    yield from _shared(tokenizer, parts)


def cores() -> int:
    """The cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux can be asked
        return os.cpu_count() or 1


def _shared(tokenizer: Tokenizer, parts: Iterator[Sequence[str]]) -> Iterator[Rows]:
    first = next(parts, None)
    if first is None:
        return
    children = [Child(tokenizer) for _ in range(min(cores(), MOST))]
    waiting: deque[tuple[Child, Sequence[str]]] = deque()  # a child has one part at a time, so no pipe can fill up
    turn = cycle(children)
    try:
        child = next(turn)
        child.send(first)
        waiting.append((child, first))
        for part in parts:  # read while the children are at work
            if len(waiting) == len(children):
                yield _received(tokenizer, *waiting.popleft())
            child = next(turn)
            child.send(part)
            waiting.append((child, part))
        while waiting:
            yield _received(tokenizer, *waiting.popleft())
    finally:
        for child in children:
            child.close()


class Child:
    """A process that encodes what it is sent; one that died answers None."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        code = _CHILD.format(path=[str(Path(each).absolute()) for each in sys.path])
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=nowhere)
        except OSError:
            self._told = self._answer = None
            return
        self._told, self._answer = self._process.stdin, self._process.stdout
        self.send(tokenizer)

    def send(self, what: object) -> None:
        try:
            if self._told is not None:
                _write(self._told, what)
        except BROKEN:
            self.close()

    def receive(self) -> object:
        try:
            return pickle.load(self._answer) if self._answer is not None else None
        except BROKEN:
            self.close()
            return None

    def close(self) -> None:
        """It ends when nothing more can come."""
        if self._told is None or self._answer is None:
            return
        for pipe in (self._told, self._answer):
            with suppress(OSError):  # it died with something unread
                pipe.close()
        self._told = self._answer = None
        self._process.wait()


def _write(pipe: IO[bytes], what: object) -> None:
    pickle.dump(what, pipe, protocol=5)
    pipe.flush()


def _received(tokenizer: Tokenizer, child: Child, part: Sequence[str]) -> Rows:
    rows = child.receive()
    return rows if isinstance(rows, Rows) else tokenizer.encode_rows(part)  # bad text is an error here


def serve() -> None:
    """The life of a child: a tokenizer, then part after part, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    told, answer = sys.stdin.buffer, sys.stdout.buffer
    try:
        tokenizer: Tokenizer = pickle.load(told)
        while True:
            part = pickle.load(told)
            try:
                _write(answer, tokenizer.encode_rows(part))
            except TriformError:
                _write(answer, None)
    except BROKEN:
        return
