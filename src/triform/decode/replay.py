"""Decoding by replay: rows go through a fixed number of slots, and the host looks at them every few steps.

What a slot's step is, recorded as a graph, is remembered for as long as its model lives.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from triform.config import DecodeConfig
from triform.decode.beam import Beams, Ending, Trail, traced
from triform.decode.choose import Sample
from triform.decode.forms import Form, Tokens
from triform.decode.slots import STEPS, Ahead, Best, Draw, Lead, Pick, Shape, Slots
from triform.nn.vocabulary import check_finite
from triform.progress import report

MOST_ROWS = 640  # hypotheses that are written at once
MOST_MEMORY = 0.1  # of a card's memory, for what is remembered of them
READ_AT_ONCE = 1 << 14  # tokens that are read ahead of their turn, and at most so many rows:
MOST_READ = 256
MOST_KEPT = 8  # sets of slots that a model keeps

_KEPT: WeakKeyDictionary[nn.Module, OrderedDict[object, Slots]] = WeakKeyDictionary()


def bucket(n: int, least: int = 1) -> int:
    """The next power of two: few sizes, so that few graphs are recorded."""
    return max(least, 1 << (n - 1).bit_length())


def memory_of(device: torch.device) -> float:
    """Bytes that a card has; elsewhere there is no need to count."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")


def most_rows(size: int, bytes_a_row: int, memory: float) -> int:
    """How many rows of `size` hypotheses are written at once: a power of two, of little memory."""
    fitting = min(MOST_ROWS // size, MOST_MEMORY * memory // bytes_a_row)
    return 1 << (max(1, int(fitting)).bit_length() - 1)


@dataclass
class Line:
    """A row that is being written: what it began with, and every step since."""

    row: int
    starts: list[list[int]]  # of each hypothesis; the same for all, until they are read again
    trail: Trail = field(default_factory=list)
    since: int = 0  # steps before `starts`

    @property
    def length(self) -> int:
        return len(self.starts[0]) + len(self.trail) - self.since

    def texts(self) -> list[list[int]]:
        """What each hypothesis goes on from."""
        made = []
        for which in range(len(self.starts)):
            origin = which
            for _, parents in reversed(self.trail[self.since :]):
                origin = int(parents[origin])
            steps = len(self.trail) - self.since
            made.append(self.starts[origin] + traced(self.trail[self.since :], steps, which))
        return made


class Replay:
    """Rows in their order, each written in a slot of its own; when it is done, the slot is another's."""

    def __init__(
        self, form: Form, rows: Sequence[Tokens], ending: Ending, strategy: str, config: DecodeConfig
    ) -> None:
        self.form, self.rows, self.ending, self.strategy, self.config = form, rows, ending, strategy, config
        self.size = config.beam_size if strategy == "beam" else 1
        self.found: list[list[int]] = [[] for _ in rows]
        self.waiting = deque(range(len(rows)))
        self.ahead: deque[tuple[int, Ahead, int]] = deque()  # rows that were read, and where
        self.lines: dict[int, Line] = {}  # by slot

    @torch.inference_mode()
    def run(self, seeds: Sequence[int]) -> list[list[int]]:
        self._read_ahead()
        self.slots = self._slots(self.ahead[0][1])
        sample = Sample(self.config, seeds)
        while self.lines or self.ahead or self.waiting:
            self._fill()
            n = self._steps()
            if isinstance(self.slots.pick, Draw):
                self.slots.pick.points[:n] = self._points(sample, n).to(self.slots.pick.points.device)
            tokens, parents = self.slots.run(self.form, n)
            check_finite(self.slots.scores[list(self.lines)])
            for slot, line in self.lines.items():
                origins = parents or [[[0]] * self.slots.shape.rows] * n
                line.trail += [(tokens[step][slot], origins[step][slot]) for step in range(n)]
            self._finish()
            self._read_again()
            left = len(self.lines) + len(self.ahead) + len(self.waiting)
            report("decoding", len(self.rows) - left, len(self.rows))
        return self.found

    def _read_ahead(self) -> None:
        """Read the next rows, many at a time, whether or not there are slots for them yet."""
        longest = len(self.rows[self.waiting[0]])
        count = min(len(self.waiting), MOST_READ, max(1, READ_AT_ONCE // max(1, longest)))
        taken = [self.waiting.popleft() for _ in range(count)]
        read = Ahead(self.form.read([self.rows[row] for row in taken]))
        self.ahead.extend((row, read, place) for place, row in enumerate(taken))

    def _slots(self, ahead: Ahead) -> Slots:
        """Slots of the right shape: those of the last time, unless the weights have moved since."""
        lengths = [len(self.form.begin(row)) for row in self.rows]
        limit = max(self.ending.limits)
        longest = min(self.form.max_len, max(map(sum, zip(lengths, self.ending.limits, strict=True))))
        model, device = self.form.model, ahead.scores.device
        sources = 0 if ahead.source is None else bucket(max(map(len, self.rows)), least=16)
        columns = bucket(longest, least=64)
        a_token = ahead.past[:, :, 0, :, 0].numel() * ahead.past.element_size()
        most = most_rows(self.size, a_token * (columns * self.size + sources), memory_of(device))
        shape = Shape(min(most, bucket(len(self.rows))), self.size, columns, sources)
        weights = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
        how: tuple[object, ...] = (self.ending.eos, self.ending.banned)
        if self.strategy == "sample":
            how += (self.config.temperature, self.config.top_k, self.config.top_p)
        if self.strategy == "beam":
            how += (self.config.length_penalty, bucket(limit))
        kept, key = _KEPT.setdefault(model, OrderedDict()), (shape, self.strategy, how, ahead.past.dtype, weights)
        if key not in kept:
            while len(kept) >= MOST_KEPT:
                kept.popitem(last=False)
            kept[key] = Slots(self.form, self._pick(shape, device), shape, ahead.read)
        kept.move_to_end(key)
        return kept[key]

    def _pick(self, shape: Shape, device: torch.device) -> Pick:
        if self.strategy == "sample":
            return Draw(self.ending.banned, device, self.config, shape.rows)
        if self.strategy == "greedy":
            return Best(self.ending.banned, device)
        longest = Ending(eos=self.ending.eos, limits=(bucket(max(self.ending.limits)),), banned=self.ending.banned)
        beams = Beams(longest, size=self.size, length_penalty=self.config.length_penalty, device=device)
        beams.join([1] * shape.rows)
        return Lead(beams)

    def _fill(self) -> None:
        """Let rows into free slots, some at a time: each time costs as much as a few steps."""
        rows = self.slots.shape.rows
        free = [slot for slot in range(rows) if slot not in self.lines]
        if self.lines and 4 * len(free) < rows:
            return
        while free and (self.ahead or self.waiting):
            if not self.ahead:
                self._read_ahead()
            read = self.ahead[0][1]
            taken: list[tuple[int, int]] = []
            while len(taken) < len(free) and self.ahead and self.ahead[0][1] is read:
                row, _, place = self.ahead.popleft()
                taken.append((row, place))
            into, free = free[: len(taken)], free[len(taken) :]
            self.slots.admit(into, read, [place for _, place in taken])
            for slot, (row, _) in zip(into, taken, strict=True):
                self.lines[slot] = Line(row, [self.form.begin(self.rows[row])] * self.size)
            if isinstance(self.slots.pick, Lead):
                limits = [self.ending.limits[row] for row, _ in taken]
                self.slots.pick.beams.begin(torch.tensor(into, device=read.scores.device), limits)

    def _steps(self) -> int:
        """How many steps until the host must look: until all are done, or the first text can be read no longer."""
        left = max(self.ending.limits[line.row] - len(line.trail) for line in self.lines.values())
        if self.form.refills:
            left = min(left, *(self.form.max_len + 1 - line.length for line in self.lines.values()))
        return max(1, min(STEPS, left))

    def _points(self, sample: Sample, n: int) -> Tensor:  # (n, B)
        points = torch.zeros(n, self.slots.shape.rows, dtype=torch.float64)
        for slot, line in self.lines.items():
            points[:, slot] = sample.points(line.row, n)
        return points

    def _finish(self) -> None:
        """Rows that are done leave their slots."""
        if isinstance(self.slots.pick, Lead):
            state = self.slots.pick.beams.state
            over, depth, which = (state[name].tolist() for name in ("over", "depth", "which"))
            done = {
                slot: traced(line.trail, depth[slot], which[slot])
                for slot, line in self.lines.items()
                if over[slot]
            }
        else:
            done = {slot: text for slot, line in self.lines.items() if (text := self._ended(line)) is not None}
        for slot, text in done.items():
            self.found[self.lines.pop(slot).row] = text

    def _ended(self, line: Line) -> list[int] | None:
        limit = self.ending.limits[line.row]
        text = [int(tokens[0]) for tokens, _ in line.trail[: max(1, limit)]]
        if self.ending.eos in text:
            return text[: text.index(self.ending.eos)]
        return text if len(text) >= limit else None

    def _read_again(self) -> None:
        """Texts that the model can read no longer go on from their newer half."""
        full = [slot for slot, line in self.lines.items() if self.form.refills and line.length > self.form.max_len]
        if not full:
            return
        half = self.form.max_len // 2 + 1  # the newest token comes on top
        texts = []
        for slot in full:
            line = self.lines[slot]
            line.starts = [text[-half:] for text in line.texts()]
            line.since = len(line.trail)
            texts += line.starts
        read = Ahead(self.form.read(texts))
        self.slots.admit(full, read, range(len(texts)), apart=self.size > 1)


def replay(
    form: Form,
    rows: Sequence[Tokens],
    config: DecodeConfig,
    ending: Ending,
    *,
    strategy: str,
    seeds: Sequence[int],
) -> list[list[int]]:
    """New tokens for each row, the end token left out."""
    return Replay(form, rows, ending, strategy, config).run(seeds)
