"""Audit data before training: duplicates, leaks, conflicting labels, imbalance, empty and long rows.

Two texts are duplicates if they are equal after normalisation: Unicode in composed form (NFC), case folded, and
runs of white space as single spaces. Exact duplicates are also counted as `verbatim`.
`triform.data.near_duplicates` finds texts that are nearly equal. For translations, sources, targets and pairs are
audited separately.
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

EMPTY_ID = -1  # the id of an empty text
MAX_EXAMPLES = 3  # examples of each kind of problem
MAX_EXAMPLE_CHARS = 72  # characters of an example

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
LengthFunction = Callable[[str, Sequence[str]], Sequence[int]]  # maps the texts of a side to their lengths


@dataclass(frozen=True, kw_only=True)
class AuditSet:
    """The texts of one dataset, with their labels or targets and line numbers. Missing columns are empty."""

    texts: Sequence[str]
    labels: Sequence[str] = ()
    targets: Sequence[str] = ()
    lines: Sequence[int] = ()

    def texts_by_side(self) -> dict[str, Sequence[str]]:
        """Return the columns to audit by name: the text, or the source, the target and the pair."""
        if not self.targets:
            return {"text": self.texts}
        joined = [f"{source} \0 {target}" for source, target in zip(self.texts, self.targets, strict=True)]
        return {"source": self.texts, "target": self.targets, "pair": joined}

    def select(self, keep: Sequence[bool]) -> AuditSet:
        """Return the set with only the rows that `keep` selects."""
        columns = {name: list(compress(getattr(self, name), keep)) for name in self.__dataclass_fields__}
        return AuditSet(**columns)

    def line_number(self, row: int) -> int:
        """Return the line on which a row starts, counted from 1."""
        return self.lines[row] if self.lines else row + 1


@dataclass(frozen=True, kw_only=True)
class SetReport:
    """The problems within one side of one set, as numbers of rows."""

    name: str
    side: str
    rows: int
    repeats: int  # duplicates of an earlier row of the set
    verbatim: int  # those of them that are equal without normalisation
    near: int  # near duplicates of an earlier row
    empty: int
    overlong: int
    conflicts: int  # rows whose text also occurs with another label (for a source: another target)
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The rows that a set shares with an earlier one. `seen` and `near` have one flag per row."""

    name: str
    within: str
    side: str
    seen: BoolArray
    near: BoolArray  # near duplicates that are not in `seen`
    verbatim: int
    same_label: int  # seen rows with the same label (for a source: the same target) as in the earlier set
    share: float  # fraction of the set's characters that are in seen rows
    examples: tuple[str, ...] = ()

    @property
    def leak(self) -> bool:
        """Whether evaluation rows also occur in the training set. Repeated targets are no leak: they are common."""
        return self.within == "train" and self.side != "target" and bool(self.seen.any())


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of an audit."""

    set_reports: tuple[SetReport, ...]
    overlaps: tuple[Overlap, ...]
    label_counts: dict[str, dict[str, int]] = field(default_factory=dict)  # for each set, most frequent label first

    @property
    def leaks(self) -> tuple[Overlap, ...]:
        """The overlaps with the training set that are leaks."""
        return tuple(overlap for overlap in self.overlaps if overlap.leak)

    @property
    def n_conflicts(self) -> int:
        """The number of rows that have another label elsewhere, in the same set or in the training set."""
        if not self.label_counts:
            return 0
        n_across_sets = sum(
            int(overlap.seen.sum()) - overlap.same_label for overlap in self.overlaps if overlap.within == "train"
        )
        return sum(report.conflicts for report in self.set_reports) + n_across_sets


def normalise_text(text: str) -> str:
    """Return a text in NFC, case folded, with single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.casefold().split())


def find_leaked(train_texts: Iterable[str], other_texts: Iterable[str], *, near: bool = False) -> list[bool]:
    """Return for each text whether it also occurs in the training texts.

    Args:
        train_texts: The training texts.
        other_texts: The texts to look up.
        near: Also report near duplicates. Without it, both streams may be larger than memory, because only one
            hash per text is kept, and only of `other_texts`.
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
    """Read a dataset as `train` does. The rows of a plain text are its non-blank lines."""
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
        raise DataError("the file has only blank lines", path=name)
    labels = [row.label for row in rows] if task == "classify" else []
    return AuditSet(texts=[row.text for row in rows], labels=labels, lines=[row.line for row in rows])


def audit_sets(
    sets: Mapping[str, AuditSet], *, near: bool = True, max_len: int = 0, lengths: LengthFunction | None = None
) -> AuditReport:
    """Audit each set, and the overlap of every two sets.

    Args:
        sets: The sets by name. The first one is the training set and must be named train.
        near: Also find near duplicates.
        max_len: Count the rows that are longer than this; 0 counts none.
        lengths: Measures the length of texts. The default counts words.
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
    reports.sort(key=lambda report: set_order[report.name])  # the sort is stable, so sides keep their order
    overlaps.sort(key=lambda overlap: (set_order[overlap.within], set_order[overlap.name]))
    return AuditReport(set_reports=tuple(reports), overlaps=tuple(overlaps), label_counts=labels)


def _count_words(side: str, texts: Sequence[str]) -> list[int]:
    return [len(nearly.split_words(text)) for text in texts]


class _TextIndex:
    """One side of all sets, with an id for every distinct text."""

    def __init__(self, sets: Mapping[str, AuditSet], side: str, *, near: bool) -> None:
        self.sets, self.side = sets, side
        self.texts = {name: rows.texts_by_side()[side] for name, rows in sets.items()}
        text_ids: dict[str, int] = {}
        self.text_ids = {name: _assign_ids(texts, text_ids) for name, texts in self.texts.items()}
        self.n_texts = len(text_ids)
        # The answer to a row is its label or, for a source, its translation.
        answers = {name: rows.labels or (rows.targets if side == "source" else ()) for name, rows in sets.items()}
        known_answers: dict[str, int] = {}
        normalise = normalise_text if side == "source" else str
        self.answer_ids = {name: _assign_ids(texts, known_answers, normalise) for name, texts in answers.items()}
        self.n_answer_ids = len(known_answers) + 1
        self.near_pairs = nearly.find_near_pairs(list(text_ids) if near else [])

    def contains(self, name: str) -> BoolArray:
        """Return for each distinct text whether it is in the set."""
        flags = np.zeros(self.n_texts, dtype=bool)
        flags[self.text_ids[name][self.text_ids[name] != EMPTY_ID]] = True
        return flags

    def first_rows(self, name: str) -> IntArray:
        """Return for each distinct text its first row in the set, or the number of rows if it is not in the set."""
        text_ids = self.text_ids[name]
        first_row = np.full(self.n_texts, len(text_ids), dtype=np.int64)
        rows = np.flatnonzero(text_ids != EMPTY_ID)[::-1]
        first_row[text_ids[rows]] = rows  # rows are in reverse order, so the first row of a text is written last
        return first_row

    def text_answer_ids(self, name: str) -> IntArray:
        """Return one id for the text and the answer of each row; an empty array if there are no answers."""
        answer_ids = self.answer_ids[name]
        return self.text_ids[name] * self.n_answer_ids + answer_ids + 1 if len(answer_ids) else answer_ids

    def format_location(self, name: str, row: int) -> str:
        return f"{name} line {self.sets[name].line_number(row)}"


def _assign_ids(
    texts: Sequence[str], ids: dict[str, int], normalise: Callable[[str], str] = normalise_text
) -> IntArray:
    """Return the id of each normalised text. New texts are added to `ids`."""
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
    """Return the rows whose text occurs in the set with several answers."""
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
    in_earlier = np.append(index.contains(within), False)  # the id of an empty text, -1, is the last index
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
    example_rows = np.sort(rows[np.unique(text_ids[rows], return_index=True)[1]])[:MAX_EXAMPLES]  # each text once
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
    """Yield near duplicates, each with the row of the other set (or the earlier row) that it resembles."""
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
                yield f"{location} (similarity {similarity:.2f}): {' | '.join(dict.fromkeys(texts))}"
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
    """Return the start of a text on one line."""
    line = " ".join(text[: 4 * MAX_EXAMPLE_CHARS].replace("\0", "|").split())
    return line if len(line) <= MAX_EXAMPLE_CHARS else line[: MAX_EXAMPLE_CHARS - 3] + "..."
