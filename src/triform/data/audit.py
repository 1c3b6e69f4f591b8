"""What is wrong with data before a model has seen it: repeats, leaks, conflicts, imbalance, empty and long rows.

Two texts are the same when they are equal after folding: Unicode in composed form (NFC), no difference of case,
white space as single spaces. How many are equal as they stand (verbatim) is told beside it. What is nearly the same
is `triform.data.near`'s affair. Of pairs, sources, targets and both together are looked at.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress

import numpy as np
from numpy.typing import NDArray

from triform.config import DataConfig, TaskName
from triform.data import near as nearly
from triform.data import readers
from triform.errors import DataError

EMPTY = -1  # the number of a text in which there is nothing
SHOWN = 3  # examples of each kind
CUT = 72  # characters of an example

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Lengths = Callable[[str, Sequence[str]], Sequence[int]]  # of a side's texts


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One set: its texts, and what belongs to each. What a set does not have is left empty."""

    texts: Sequence[str]
    labels: Sequence[str] = ()
    targets: Sequence[str] = ()
    lines: Sequence[int] = ()

    def sides(self) -> dict[str, Sequence[str]]:
        """What is looked at, under its name."""
        if not self.targets:
            return {"text": self.texts}
        both = [f"{source} \0 {target}" for source, target in zip(self.texts, self.targets, strict=True)]
        return {"source": self.texts, "target": self.targets, "pair": both}

    def some(self, keep: Sequence[bool]) -> Rows:
        """The rows to keep."""
        columns = {name: list(compress(getattr(self, name), keep)) for name in self.__dataclass_fields__}
        return Rows(**columns)

    def line(self, row: int) -> int:
        return self.lines[row] if self.lines else row + 1


@dataclass(frozen=True, kw_only=True)
class Content:
    """One side of one set, looked at alone; all are numbers of rows."""

    name: str
    side: str
    rows: int
    repeats: int  # that an earlier row of the set equals
    verbatim: int  # of these, as they stand
    near: int  # that are near an earlier row, and equal none
    empty: int
    overlong: int
    conflicts: int  # whose text stands in the set with another label (of a source: with another target) too
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What a set shares with an earlier one; `seen` and `near` say so row by row."""

    name: str
    within: str
    side: str
    seen: Flags
    near: Flags  # and not seen
    verbatim: int
    same_label: int  # seen rows whose label (of a source: whose target) the earlier set gives too
    share: float  # of the set's characters that are in seen rows
    examples: tuple[str, ...] = ()

    @property
    def leak(self) -> bool:
        """Whether rows to be judged by were there to learn from; targets recur in any language."""
        return self.within == "train" and self.side != "target" and bool(self.seen.any())


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All that was found."""

    contents: tuple[Content, ...]
    overlaps: tuple[Overlap, ...]
    labels: dict[str, dict[str, int]] = field(default_factory=dict)  # of each set, the most frequent first

    @property
    def leaks(self) -> tuple[Overlap, ...]:
        return tuple(overlap for overlap in self.overlaps if overlap.leak)

    @property
    def conflicts(self) -> int:
        """Rows whose label another row of the same text contradicts, in the same set or in the training set."""
        if not self.labels:
            return 0
        across = sum(int(each.seen.sum()) - each.same_label for each in self.overlaps if each.within == "train")
        return sum(content.conflicts for content in self.contents) + across


def fold(text: str) -> str:
    """The text without what does not make it another one."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.casefold().split())


def seen(train_texts: Iterable[str], other_texts: Iterable[str], *, near: bool = False) -> list[bool]:
    """For each other text, whether the training texts have it too (with `near`: or one much like it).

    Without `near` both may be streams larger than memory: one number a text is held, of the other texts alone.
    """
    if near:
        rows = {"train": Rows(texts=list(train_texts)), "other": Rows(texts=list(other_texts))}
        overlap = audit(rows).overlaps[0]
        found: list[bool] = (overlap.seen | overlap.near).tolist()
        return found
    others = [hash(fold(text)) for text in other_texts]  # 64 bits: no two texts will share them by chance
    asked = set(others) - {hash("")}
    there = {folded for text in train_texts if (folded := hash(fold(text))) in asked}
    return [text in there for text in others]


def read_set(task: TaskName, name: str, layout: DataConfig) -> Rows:
    """What `train` would read. The rows of a running text are its lines, without the blank ones."""
    if task == "translate":
        pairs = list(readers.read_either(name, layout))
        return Rows(
            texts=[pair.source for pair in pairs],
            targets=[pair.target for pair in pairs],
            lines=[pair.line for pair in pairs],
        )
    found: Iterator[readers.Row] = readers.read_rows(name, layout, labelled=task == "classify")
    if task == "generate" and readers.is_running_text(name):
        found = (readers.Row(text, "", line) for line, text in readers.read_lines(name) if text.strip())
    rows = list(found)
    if not rows:
        raise DataError("has no line with anything on it", path=name)
    labels = [row.label for row in rows] if task == "classify" else []
    return Rows(texts=[row.text for row in rows], labels=labels, lines=[row.line for row in rows])


def audit(
    sets: Mapping[str, Rows], *, near: bool = True, max_len: int = 0, lengths: Lengths | None = None
) -> Audit:
    """Look at each set and at every two of them; the first is what is learned from and is called train.

    With `max_len`, rows longer than it are counted: in words, or in what `lengths` measures.
    """
    contents: list[Content] = []
    overlaps: list[Overlap] = []
    for side in next(iter(sets.values())).sides() if sets else ():
        index = _Index(sets, side, near=near and side != "pair")
        measure = lengths or _word_counts if max_len and side != "pair" else None
        contents += [_content(index, name, max_len, measure) for name in sets]
        overlaps += [_overlap(index, *names) for names in combinations(sets, 2)]
    labels = {name: dict(Counter(rows.labels).most_common()) for name, rows in sets.items() if rows.labels}
    order = {name: place for place, name in enumerate(sets)}
    contents.sort(key=lambda content: order[content.name])  # sorting keeps the order of the sides
    overlaps.sort(key=lambda overlap: (order[overlap.within], order[overlap.name]))
    return Audit(contents=tuple(contents), overlaps=tuple(overlaps), labels=labels)


def _word_counts(side: str, texts: Sequence[str]) -> list[int]:
    return [len(nearly.words(text)) for text in texts]


class _Index:
    """One side of all sets: every distinct text has a number."""

    def __init__(self, sets: Mapping[str, Rows], side: str, *, near: bool) -> None:
        self.sets, self.side = sets, side
        self.texts = {name: rows.sides()[side] for name, rows in sets.items()}
        distinct: dict[str, int] = {}
        self.numbers = {name: _numbered(texts, distinct) for name, texts in self.texts.items()}
        self.size = len(distinct)
        # what a row is asked about: its label or, of a source, its translation
        answers = {name: rows.labels or (rows.targets if side == "source" else ()) for name, rows in sets.items()}
        known: dict[str, int] = {}
        key = fold if side == "source" else str
        self.answers = {name: _numbered(texts, known, key) for name, texts in answers.items()}
        self.n_answers = len(known) + 1
        self.near = nearly.near_pairs(list(distinct) if near else [])

    def holds(self, name: str) -> Flags:
        """For each distinct text, whether the set has it."""
        flags = np.zeros(self.size, dtype=bool)
        flags[self.numbers[name][self.numbers[name] != EMPTY]] = True
        return flags

    def firsts(self, name: str) -> Numbers:
        """For each distinct text, the first row of the set that has it; beyond all rows where none has."""
        numbers = self.numbers[name]
        first = np.full(self.size, len(numbers), dtype=np.int64)
        rows = np.flatnonzero(numbers != EMPTY)[::-1]
        first[numbers[rows]] = rows  # of several the last one written stays, which is the first
        return first

    def asked(self, name: str) -> Numbers:
        """Text and answer of each row as one number; none where there are no answers."""
        answers = self.answers[name]
        return self.numbers[name] * self.n_answers + answers + 1 if len(answers) else answers

    def place(self, name: str, row: int) -> str:
        return f"{name} line {self.sets[name].line(row)}"


def _numbered(texts: Sequence[str], known: dict[str, int], key: Callable[[str], str] = fold) -> Numbers:
    """The number of each text, by what `key` makes of it; new ones are added to those known."""
    folded = map(key, texts)
    found = (known.setdefault(text, len(known)) if text else EMPTY for text in folded)
    return np.fromiter(found, dtype=np.int64, count=len(texts))


def _content(index: _Index, name: str, max_len: int, measure: Lengths | None) -> Content:
    numbers, texts, first = index.numbers[name], index.texts[name], index.firsts(name)
    empty = numbers == EMPTY
    there = np.flatnonzero(~empty)
    repeats = there[first[numbers[there]] != there]
    verbatim = len(there) - len({texts[row] for row in there.tolist()})
    before, after = index.near.first, index.near.second
    inside = np.maximum(first[before], first[after]) < len(numbers)
    near = np.unique(np.maximum(first[before], first[after])[inside])
    conflicts = _conflicting(index, name)
    overlong = sum(length > max_len for length in measure(index.side, texts)) if measure else 0
    examples = [*_repeated(index, name, repeats), *_likened(index, name, name, near)]
    return Content(
        name=name,
        side=index.side,
        rows=len(texts),
        repeats=len(repeats),
        verbatim=verbatim,
        near=len(near),
        empty=int(empty.sum()),
        overlong=overlong,
        conflicts=len(conflicts),
        examples=(*examples, *_contradicting(index, name, conflicts)),
    )


def _conflicting(index: _Index, name: str) -> Numbers:
    """The rows whose text stands in the set with several answers."""
    if not len(index.answers[name]):
        return np.zeros(0, dtype=np.int64)
    numbers = index.numbers[name]
    texts = np.unique(index.asked(name)[numbers != EMPTY]) // index.n_answers
    several = np.bincount(texts, minlength=index.size) > 1
    return np.flatnonzero((numbers != EMPTY) & several[numbers]) if index.size else np.zeros(0, dtype=np.int64)


def _overlap(index: _Index, within: str, name: str) -> Overlap:
    numbers, real = index.numbers[name], index.numbers[name] != EMPTY
    there = np.append(index.holds(within), False)  # the number of an empty text is the last place
    close = np.zeros(index.size + 1, dtype=bool)
    for one, other in ((index.near.first, index.near.second), (index.near.second, index.near.first)):
        close[one[there[other]]] = True
    found = real & there[numbers]
    near = real & close[numbers] & ~found
    earlier = set(index.texts[within])
    texts = index.texts[name]
    rows = np.flatnonzero(found)
    same = np.isin(index.asked(name)[rows], index.asked(within)) if len(index.asked(name)) else np.ones(0)
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    first = index.firsts(within)
    shown = np.sort(rows[np.unique(numbers[rows], return_index=True)[1]])[:SHOWN]  # no text twice
    examples = [
        f"{index.place(name, row)} = {index.place(within, int(first[numbers[row]]))}: {shortened(texts[row])}"
        for row in shown.tolist()
    ]
    return Overlap(
        name=name,
        within=within,
        side=index.side,
        seen=found,
        near=near,
        verbatim=sum(texts[row] in earlier for row in rows.tolist()),
        same_label=int(same.sum()),
        share=float(sizes[found].sum() / max(1, sizes.sum())),
        examples=(*examples, *_likened(index, name, within, np.flatnonzero(near))),
    )


def _repeated(index: _Index, name: str, repeats: Numbers) -> Iterator[str]:
    numbers, first = index.numbers[name], index.firsts(name)
    for number, times in Counter(numbers[repeats].tolist()).most_common(SHOWN):
        row = int(first[number])
        yield f"{times + 1} times, first {index.place(name, row)}: {shortened(index.texts[name][row])}"


def _likened(index: _Index, name: str, within: str, rows: Numbers) -> Iterator[str]:
    """Near rows beside the row of the other set (or the earlier row of the same) that each is near to."""
    numbers, first = index.numbers[name], index.firsts(within)
    for row in rows[:SHOWN].tolist():
        for one, other in ((index.near.first, index.near.second), (index.near.second, index.near.first)):
            hits = np.flatnonzero((one == numbers[row]) & (first[other] < len(index.texts[within])))
            if name == within:
                hits = hits[first[other[hits]] < row]
            if len(hits):
                like, twin = index.near.likeness[hits[0]], int(first[other[hits[0]]])
                texts = (shortened(index.texts[name][row]), shortened(index.texts[within][twin]))
                where = f"{index.place(name, row)} ~ {index.place(within, twin)}"
                yield f"{where} ({like:.2f} alike): {' | '.join(dict.fromkeys(texts))}"
                break


def _contradicting(index: _Index, name: str, rows: Numbers) -> Iterator[str]:
    if not index.sets[name].labels:
        return  # a sentence may be translated in several ways
    numbers, labels = index.numbers[name], index.sets[name].labels
    for number in list(dict.fromkeys(numbers[rows].tolist()))[:SHOWN]:
        same = np.flatnonzero(numbers == number)[: SHOWN + 1].tolist()
        told = ", ".join(f"{labels[row]!r} at line {index.sets[name].line(row)}" for row in same)
        yield f"{told}: {shortened(index.texts[name][same[0]])}"


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * CUT].replace("\0", "|").split())
    return line if len(line) <= CUT else line[: CUT - 3] + "..."
