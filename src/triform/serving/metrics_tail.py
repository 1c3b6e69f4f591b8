"""Follow the metrics of a run while it trains, without reading a long file as a whole.

A short `metrics.jsonl` is read completely. Of a long one, its head, its tail and blocks in between are read.
Validations are rare among the lines, so they are searched for by their step: steps increase in the file, and a few
reads find the line of a step.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from triform.errors import CheckpointError
from triform.io.events import Event, parse_event
from triform.io.files import open_regular
from triform.reporting.run_history import is_finite

MAX_POINTS = 2_000  # of the training curve
MAX_OTHER_POINTS = 400  # of the curve of a validation set, and of other kinds of events
MAX_COMPLETE_BYTES = 4 << 20  # a file of this size is read completely
HEAD_BYTES, TAIL_BYTES = 64 << 10, 256 << 10
N_BLOCKS, BLOCK_BYTES = 1_000, 4_096
MAX_BACKWARD_BYTES = 16 << 20  # how far back the last validations are searched for
MAX_SEARCH_READS = 8  # for one validation
MAX_NEW_BYTES = 4 << 20  # more new lines than this are thinned as well
FINGERPRINT_BYTES = 64
TRAIN_KEYS = ("event", "step", "epoch", "loss", "lr", "tokens_per_s", "grad_norm", "seconds")


@dataclass(kw_only=True)
class MetricsTail:
    """A position in a metrics file: `read_history` reads up to its end, and `read_new` what was added later."""

    path: Path
    offset: int = 0
    inode: int = 0
    fingerprint: bytes = b""  # what stands before the offset; it differs if the file was rewritten

    def read_history(self) -> list[Event]:
        """Return the events so far, thinned, and remember the end of the file. A missing file has no events."""
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                located = read_all_events(file) if size <= MAX_COMPLETE_BYTES else sample_events(file, size)
                end = _last_line_end(file, os.fstat(file.fileno()).st_size if size <= MAX_COMPLETE_BYTES else size)
                self._remember(file, end)
        except (OSError, CheckpointError):
            self.offset, self.inode, self.fingerprint = 0, 0, b""
            return []
        return thin_events([event for position, event in sorted(located.items()) if position < end])

    def read_new(self) -> list[Event] | None:
        """Return the events that were added, or None if the file was rewritten or has very many new lines."""
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino == self.inode and status.st_size == self.offset:
                    return []
                start = self.offset - len(self.fingerprint)
                file.seek(start)
                if status.st_ino != self.inode or file.read(len(self.fingerprint)) != self.fingerprint:
                    return None
                content = file.read(MAX_NEW_BYTES + 1)
                if len(content) > MAX_NEW_BYTES:
                    return None
                complete = content[: content.rfind(b"\n") + 1]
                self._remember(file, self.offset + len(complete))
        except (OSError, CheckpointError):
            return None if self.inode else []
        return [_shorten(event) for line in complete.split(b"\n") if (event := parse_event(line)) is not None]

    def _remember(self, file: BinaryIO, offset: int) -> None:
        self.inode, self.offset = os.fstat(file.fileno()).st_ino, offset
        start = file.seek(max(0, offset - FINGERPRINT_BYTES))
        self.fingerprint = file.read(offset - start)


def read_all_events(file: BinaryIO) -> dict[int, Event]:
    """Return the events of a short file by their positions."""
    file.seek(0)
    return dict(_parse_lines(file.read(), 0))


def sample_events(file: BinaryIO, size: int) -> dict[int, Event]:
    """Return events of a long file by their positions: of its ends, of blocks in between, and validations."""
    events = dict(_read_block(file, 0, HEAD_BYTES, size))
    events.update(_read_block(file, size - TAIL_BYTES, TAIL_BYTES, size))
    stride = (size - HEAD_BYTES - TAIL_BYTES) / N_BLOCKS
    for index in range(N_BLOCKS):
        events.update(_read_block(file, HEAD_BYTES + int(index * stride), BLOCK_BYTES, size))
    events.update(ValidationSearch.prepare(file, size, events).find_all())
    return events


@dataclass(kw_only=True)
class ValidationSearch:
    """A search for the lines of validations by their steps, between lines whose steps are known."""

    file: BinaryIO
    size: int
    steps: list[float]  # increasing
    positions: list[int]
    validation_steps: list[int]
    events: dict[int, Event] = field(default_factory=dict)

    @classmethod
    def prepare(cls, file: BinaryIO, size: int, events: dict[int, Event]) -> ValidationSearch:
        """Return a search that uses the known events."""
        known = [(position, float(event["step"])) for position, event in sorted(events.items()) if _has_step(event)]
        increasing = [pair for i, pair in enumerate(known) if not i or pair[1] > known[i - 1][1]]
        validation_steps = [
            int(event["step"]) for event in events.values() if event["event"] == "valid" and _has_step(event)
        ]
        validation_steps += [] if len(set(validation_steps)) > 3 else _last_validation_steps(file, size)
        return cls(
            file=file,
            size=size,
            steps=[step for _, step in increasing],
            positions=[position for position, _ in increasing],
            validation_steps=sorted(set(validation_steps)),
        )

    def find_all(self) -> dict[int, Event]:
        """Return the validations at equal distances in steps, with the other events around them."""
        regular = self.validation_steps[:-1] or self.validation_steps  # the last may be that of the last step
        if not regular or len(self.steps) < 2:
            return {}
        interval = math.gcd(*(step - regular[0] for step in regular[1:])) or regular[0] or 1
        first = regular[0] % interval or interval
        n_validations = int((self.steps[-1] - first) // interval) + 1
        stride = interval * max(1, math.ceil(n_validations / MAX_OTHER_POINTS))
        for step in range(first, int(self.steps[-1]) + 1, stride):
            self._find(step)
        return self.events

    def _find(self, step: int) -> None:
        """Read the lines around a step. The guess between two known lines is right after one or two reads."""
        for _ in range(MAX_SEARCH_READS):
            after = min(max(1, bisect_left(self.steps, step)), len(self.steps) - 1)
            low, high = self.steps[after - 1], self.steps[after]
            low_position, high_position = self.positions[after - 1], self.positions[after]
            share = min(1.0, max(0.0, (step - low) / (high - low)))
            guess = low_position + int(share * (high_position - low_position)) - BLOCK_BYTES
            block = dict(_read_block(self.file, max(0, guess), 3 * BLOCK_BYTES, self.size))
            self.events.update((position, event) for position, event in block.items() if event["event"] != "train")
            known = [(position, float(event["step"])) for position, event in block.items() if _has_step(event)]
            if not known or known[0][1] < step <= known[-1][1] or high_position - low_position <= BLOCK_BYTES:
                return
            edge = known[-1] if known[-1][1] < step else known[0]
            index = bisect_left(self.steps, edge[1])
            if index < len(self.steps) and self.steps[index] == edge[1]:
                return
            self.steps.insert(index, edge[1])
            self.positions.insert(index, edge[0])


def thin_events(events: Sequence[Event]) -> list[Event]:
    """Return at most `MAX_POINTS` training events, and at most `MAX_OTHER_POINTS` of each other kind.

    Of training events, those with the lowest and the highest loss of each interval remain, so spikes are kept.
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    for index, event in enumerate(events):
        kinds.setdefault((event["event"], str(event.get("set", ""))), []).append(index)
    retained: set[int] = set()
    for (kind, _), indices in kinds.items():
        retained.update(_thin_by_loss(events, indices) if kind == "train" else _thin_evenly(indices))
    return [_shorten(events[index]) for index in sorted(retained)]


def _thin_evenly(indices: Sequence[int]) -> list[int]:
    stride = math.ceil(len(indices) / MAX_OTHER_POINTS)
    return [*indices[::stride], indices[-1]]


def _thin_by_loss(events: Sequence[Event], indices: Sequence[int]) -> list[int]:
    if len(indices) <= MAX_POINTS:
        return list(indices)
    n_bins, inner = (MAX_POINTS - 2) // 2, indices[1:-1]
    retained = [indices[0], indices[-1]]
    for i in range(n_bins):
        bin_indices = inner[i * len(inner) // n_bins : (i + 1) * len(inner) // n_bins]
        losses = [(loss, index) for index in bin_indices if is_finite(loss := events[index].get("loss"))]
        retained += [min(losses)[1], max(losses)[1]] if losses else bin_indices[:1]
    return retained


def _shorten(event: Event) -> Event:
    """Return a training event without what the page does not show."""
    return {key: event[key] for key in TRAIN_KEYS if key in event} if event["event"] == "train" else event


def _has_step(event: Event) -> bool:
    return event["event"] in ("train", "valid", "monitor") and is_finite(event.get("step"))


def _read_block(file: BinaryIO, position: int, length: int, size: int) -> Iterator[tuple[int, Event]]:
    """Yield the events of the complete lines in a part of a file, with their positions."""
    position = file.seek(max(0, position))
    content = file.read(min(length, size - position))
    first = content.find(b"\n") + 1 if position else 0
    return _parse_lines(content[first:], position + first)


def _parse_lines(content: bytes, position: int) -> Iterator[tuple[int, Event]]:
    for line in content.split(b"\n")[:-1]:  # the last line has no end and may be incomplete
        if (event := parse_event(line)) is not None:
            yield position, event
        position += len(line) + 1


def _last_line_end(file: BinaryIO, size: int) -> int:
    """Return the position after the last complete line."""
    start = file.seek(max(0, size - TAIL_BYTES))
    return start + file.read(size - start).rfind(b"\n") + 1


def _last_validation_steps(file: BinaryIO, size: int) -> list[int]:
    """Return the steps of some of the last validations, from the end of a file backwards."""
    steps: list[int] = []
    chunk_bytes = 1 << 20
    for position in range(size - chunk_bytes, max(0, size - MAX_BACKWARD_BYTES), -chunk_bytes):
        file.seek(position)
        content = file.read(chunk_bytes + BLOCK_BYTES)  # a line at the edge belongs to one of the chunks
        lines = (line for line in content.split(b"\n") if line.startswith(b'{"event": "valid"'))
        steps += [int(event["step"]) for line in lines if (event := parse_event(line)) and _has_step(event)]
        if len(set(steps)) > 3:
            break
    return steps
