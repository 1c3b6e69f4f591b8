"""What is wrong with data before a model has seen it: repeats, leaks, conflicts, imbalance, empty and long rows.

Two texts are the same when they are equal after folding: Unicode in composed form (NFC), no difference of case,
white space as single spaces. How many are equal as they stand (verbatim) is told beside it. What is nearly the same
is `triform.data.near_duplicates`'s affair. Of pairs, sources, targets and both together are looked at.
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
from triform.data import near_duplicates as nearly
from triform.data import readers
from triform.errors import DataError

EMPTY_ID = -1  # the number of a text in which there is nothing
MAX_EXAMPLES = 3  # examples of each kind
MAX_EXAMPLE_CHARS = 72  # characters of an example

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
LengthFunction = Callable[[str, Sequence[str]], Sequence[int]]  # of a side's texts


@dataclass(frozen=True, kw_only=True)
class AuditSet:
    """One set: its texts, and what belongs to each. What a set does not have is left empty."""

    texts: Sequence[str]
    labels: Sequence[str] = ()
    targets: Sequence[str] = ()
    lines: Sequence[int] = ()

    def texts_by_side(self) -> dict[str, Sequence[str]]:
        """What is looked at, under its name."""
        if not self.targets:
            return {"text": self.texts}
        joined = [f"{source} \0 {target}" for source, target in zip(self.texts, self.targets, strict=True)]
        return {"source": self.texts, "target": self.targets, "pair": joined}

    def select(self, keep: Sequence[bool]) -> AuditSet:
        """The rows to keep."""
        columns = {name: list(compress(getattr(self, name), keep)) for name in self.__dataclass_fields__}
        return AuditSet(**columns)

    def line_number(self, row: int) -> int:
        return self.lines[row] if self.lines else row + 1


@dataclass(frozen=True, kw_only=True)
class SetReport:
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
    seen: BoolArray
    near: BoolArray  # and not seen
    verbatim: int
    same_label: int  # seen rows whose label (of a source: whose target) the earlier set gives too
    share: float  # of the set's characters that are in seen rows
    examples: tuple[str, ...] = ()

    @property
    def leak(self) -> bool:
        """Whether rows to be judged by were there to learn from; targets recur in any language."""
        return self.within == "train" and self.side != "target" and bool(self.seen.any())


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All that was found."""

    set_reports: tuple[SetReport, ...]
    overlaps: tuple[Overlap, ...]
    label_counts: dict[str, dict[str, int]] = field(default_factory=dict)  # of each set, the most frequent first

    @property
    def leaks(self) -> tuple[Overlap, ...]:
        return tuple(overlap for overlap in self.overlaps if overlap.leak)

    @property
    def n_conflicts(self) -> int:
        """Rows whose label another row of the same text contradicts, in the same set or in the training set."""
        if not self.label_counts:
            return 0
        n_across_sets = sum(
            int(overlap.seen.sum()) - overlap.same_label for overlap in self.overlaps if overlap.within == "train"
        )
        return sum(report.conflicts for report in self.set_reports) + n_across_sets


def normalise_text(text: str) -> str:
    """The text without what does not make it another one."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.casefold().split())


def find_leaked(train_texts: Iterable[str], other_texts: Iterable[str], *, near: bool = False) -> list[bool]:
    """For each other text, whether the training texts have it too (with `near`: or one much like it).

    Without `near` both may be streams larger than memory: one number a text is held, of the other texts alone.
    """
    if near:
        sets = {"train": AuditSet(texts=list(train_texts)), "other": AuditSet(texts=list(other_texts))}
        overlap = audit_sets(sets).overlaps[0]
        leaked: list[bool] = (overlap.seen | overlap.near).tolist()
        return leaked
    # Hashes have 64 bits, so collisions are negligible.
    other_hashes = [hash(normalise_text(text)) for text in other_texts]
    expected = set(other_hashes) - {hash("")}
    found_hashes = {text_hash for text in train_texts if (text_hash := hash(normalise_text(text))) in expected}
    return [text in found_hashes for text in other_hashes]


def read_audit_set(task: TaskName, name: str, data_config: DataConfig) -> AuditSet:
    """What `train` would read. The rows of a running text are its lines, without the blank ones."""
    if task == "translate":
        pairs = list(readers.read_pairs_or_aligned(name, data_config))
        return AuditSet(
            texts=[pair.source for pair in pairs],
            targets=[pair.target for pair in pairs],
            lines=[pair.line for pair in pairs],
        )
    examples: Iterator[readers.LabelledText] = readers.read_rows(name, data_config, labelled=task == "classify")
    if task == "generate" and readers.is_running_text(name):
        examples = (readers.LabelledText(text, "", line) for line, text in readers.read_lines(name) if text.strip())
    rows = list(examples)
    if not rows:
        raise DataError("has no line with anything on it", path=name)
    labels = [row.label for row in rows] if task == "classify" else []
    return AuditSet(texts=[row.text for row in rows], labels=labels, lines=[row.line for row in rows])


def audit_sets(
    sets: Mapping[str, AuditSet], *, near: bool = True, max_len: int = 0, lengths: LengthFunction | None = None
) -> AuditReport:
    """Look at each set and at every two of them; the first is what is learned from and is called train.

    With `max_len`, rows longer than it are counted: in words, or in what `lengths` measures.
    """
    reports: list[SetReport] = []
    overlaps: list[Overlap] = []
    for side in next(iter(sets.values())).texts_by_side() if sets else ():
        index = _TextIndex(sets, side, near=near and side != "pair")
        measure_lengths = lengths or _count_words if max_len and side != "pair" else None
        reports += [_report_set(index, name, max_len, measure_lengths) for name in sets]
        overlaps += [_compare_sets(index, *pair_of_names) for pair_of_names in combinations(sets, 2)]
    labels = {name: dict(Counter(rows.labels).most_common()) for name, rows in sets.items() if rows.labels}
    set_order = {name: position for position, name in enumerate(sets)}
    reports.sort(key=lambda report: set_order[report.name])  # sorting keeps the order of the sides
    overlaps.sort(key=lambda overlap: (set_order[overlap.within], set_order[overlap.name]))
    return AuditReport(set_reports=tuple(reports), overlaps=tuple(overlaps), label_counts=labels)


def _count_words(side: str, texts: Sequence[str]) -> list[int]:
    return [len(nearly.split_words(text)) for text in texts]


class _TextIndex:
    """One side of all sets: every distinct text has a number."""

    def __init__(self, sets: Mapping[str, AuditSet], side: str, *, near: bool) -> None:
        self.sets, self.side = sets, side
        self.texts = {name: rows.texts_by_side()[side] for name, rows in sets.items()}
        text_ids: dict[str, int] = {}
        self.text_ids = {name: _assign_ids(texts, text_ids) for name, texts in self.texts.items()}
        self.n_texts = len(text_ids)
        # what a row is asked about: its label or, of a source, its translation
        answers = {name: rows.labels or (rows.targets if side == "source" else ()) for name, rows in sets.items()}
        known_answers: dict[str, int] = {}
        normalise = normalise_text if side == "source" else str
        self.answer_ids = {name: _assign_ids(texts, known_answers, normalise) for name, texts in answers.items()}
        self.n_answer_ids = len(known_answers) + 1
        self.near_pairs = nearly.find_near_pairs(list(text_ids) if near else [])

    def contains(self, name: str) -> BoolArray:
        """For each distinct text, whether the set has it."""
        flags = np.zeros(self.n_texts, dtype=bool)
        flags[self.text_ids[name][self.text_ids[name] != EMPTY_ID]] = True
        return flags

    def first_rows(self, name: str) -> IntArray:
        """For each distinct text, the first row of the set that has it; beyond all rows where none has."""
        text_ids = self.text_ids[name]
        first_row = np.full(self.n_texts, len(text_ids), dtype=np.int64)
        rows = np.flatnonzero(text_ids != EMPTY_ID)[::-1]
        first_row[text_ids[rows]] = rows  # of several the last one written stays, which is the first
        return first_row

    def text_answer_ids(self, name: str) -> IntArray:
        """Text and answer of each row as one number; none where there are no answers."""
        answer_ids = self.answer_ids[name]
        return self.text_ids[name] * self.n_answer_ids + answer_ids + 1 if len(answer_ids) else answer_ids

    def format_location(self, name: str, row: int) -> str:
        return f"{name} line {self.sets[name].line_number(row)}"


def _assign_ids(
    texts: Sequence[str], ids: dict[str, int], normalise: Callable[[str], str] = normalise_text
) -> IntArray:
    """The number of each text, by what `key` makes of it; new ones are added to those known."""
    normalised = map(normalise, texts)
    assigned = (ids.setdefault(text, len(ids)) if text else EMPTY_ID for text in normalised)
    return np.fromiter(assigned, dtype=np.int64, count=len(texts))


def _report_set(index: _TextIndex, name: str, max_len: int, measure_lengths: LengthFunction | None) -> SetReport:
    text_ids, texts, first_row = index.text_ids[name], index.texts[name], index.first_rows(name)
    empty = text_ids == EMPTY_ID
    non_empty = np.flatnonzero(~empty)
    repeats = non_empty[first_row[text_ids[non_empty]] != non_empty]
    verbatim = len(non_empty) - len({texts[row] for row in non_empty.tolist()})
    first_ids, second_ids = index.near_pairs.first, index.near_pairs.second
    both_present = np.maximum(first_row[first_ids], first_row[second_ids]) < len(text_ids)
    near_rows = np.unique(np.maximum(first_row[first_ids], first_row[second_ids])[both_present])
    conflicts = _find_conflicts(index, name)
    overlong = sum(length > max_len for length in measure_lengths(index.side, texts)) if measure_lengths else 0
    examples = [*_format_repeats(index, name, repeats), *_format_near_examples(index, name, name, near_rows)]
    return SetReport(
        name=name,
        side=index.side,
        rows=len(texts),
        repeats=len(repeats),
        verbatim=verbatim,
        near=len(near_rows),
        empty=int(empty.sum()),
        overlong=overlong,
        conflicts=len(conflicts),
        examples=(*examples, *_format_conflicts(index, name, conflicts)),
    )


def _find_conflicts(index: _TextIndex, name: str) -> IntArray:
    """The rows whose text stands in the set with several answers."""
    if not len(index.answer_ids[name]):
        return np.zeros(0, dtype=np.int64)
    text_ids = index.text_ids[name]
    texts = np.unique(index.text_answer_ids(name)[text_ids != EMPTY_ID]) // index.n_answer_ids
    has_several_answers = np.bincount(texts, minlength=index.n_texts) > 1
    return (
        np.flatnonzero((text_ids != EMPTY_ID) & has_several_answers[text_ids])
        if index.n_texts
        else np.zeros(0, dtype=np.int64)
    )


def _compare_sets(index: _TextIndex, within: str, name: str) -> Overlap:
    text_ids, non_empty = index.text_ids[name], index.text_ids[name] != EMPTY_ID
    in_earlier = np.append(index.contains(within), False)  # the number of an empty text is the last place
    is_near = np.zeros(index.n_texts + 1, dtype=bool)
    for ids, other_ids in (
        (index.near_pairs.first, index.near_pairs.second),
        (index.near_pairs.second, index.near_pairs.first),
    ):
        is_near[ids[in_earlier[other_ids]]] = True
    seen = non_empty & in_earlier[text_ids]
    near = non_empty & is_near[text_ids] & ~seen
    earlier_texts = set(index.texts[within])
    texts = index.texts[name]
    rows = np.flatnonzero(seen)
    same_answer = (
        np.isin(index.text_answer_ids(name)[rows], index.text_answer_ids(within))
        if len(index.text_answer_ids(name))
        else np.ones(0)
    )
    text_lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    first_row = index.first_rows(within)
    example_rows = np.sort(rows[np.unique(text_ids[rows], return_index=True)[1]])[:MAX_EXAMPLES]  # no text twice
    examples = [
        f"{index.format_location(name, row)} = {index.format_location(within, int(first_row[text_ids[row]]))}: "
        f"{shorten_example(texts[row])}"
        for row in example_rows.tolist()
    ]
    return Overlap(
        name=name,
        within=within,
        side=index.side,
        seen=seen,
        near=near,
        verbatim=sum(texts[row] in earlier_texts for row in rows.tolist()),
        same_label=int(same_answer.sum()),
        share=float(text_lengths[seen].sum() / max(1, text_lengths.sum())),
        examples=(*examples, *_format_near_examples(index, name, within, np.flatnonzero(near))),
    )


def _format_repeats(index: _TextIndex, name: str, repeats: IntArray) -> Iterator[str]:
    text_ids, first_row = index.text_ids[name], index.first_rows(name)
    for text_id, n_repeats in Counter(text_ids[repeats].tolist()).most_common(MAX_EXAMPLES):
        row = int(first_row[text_id])
        example = shorten_example(index.texts[name][row])
        yield f"{n_repeats + 1} times, first {index.format_location(name, row)}: {example}"


def _format_near_examples(index: _TextIndex, name: str, within: str, rows: IntArray) -> Iterator[str]:
    """Near rows beside the row of the other set (or the earlier row of the same) that each is near to."""
    text_ids, first_row = index.text_ids[name], index.first_rows(within)
    for row in rows[:MAX_EXAMPLES].tolist():
        for ids, other_ids in (
            (index.near_pairs.first, index.near_pairs.second),
            (index.near_pairs.second, index.near_pairs.first),
        ):
            hits = np.flatnonzero((ids == text_ids[row]) & (first_row[other_ids] < len(index.texts[within])))
            if name == within:
                hits = hits[first_row[other_ids[hits]] < row]
            if len(hits):
                similarity, near_row = index.near_pairs.similarity[hits[0]], int(first_row[other_ids[hits[0]]])
                texts = (shorten_example(index.texts[name][row]), shorten_example(index.texts[within][near_row]))
                location = f"{index.format_location(name, row)} ~ {index.format_location(within, near_row)}"
                yield f"{location} ({similarity:.2f} alike): {' | '.join(dict.fromkeys(texts))}"
                break


def _format_conflicts(index: _TextIndex, name: str, rows: IntArray) -> Iterator[str]:
    if not index.sets[name].labels:
        return  # a sentence may be translated in several ways
    text_ids, labels = index.text_ids[name], index.sets[name].labels
    for text_id in list(dict.fromkeys(text_ids[rows].tolist()))[:MAX_EXAMPLES]:
        same_rows = np.flatnonzero(text_ids == text_id)[: MAX_EXAMPLES + 1].tolist()
        conflict = ", ".join(f"{labels[row]!r} at line {index.sets[name].line_number(row)}" for row in same_rows)
        yield f"{conflict}: {shorten_example(index.texts[name][same_rows[0]])}"


def shorten_example(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * MAX_EXAMPLE_CHARS].replace("\0", "|").split())
    return line if len(line) <= MAX_EXAMPLE_CHARS else line[: MAX_EXAMPLE_CHARS - 3] + "..."
