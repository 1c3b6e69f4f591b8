"""Inspect a data file before training: its columns, rows and labels, and what the audit finds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from triform.config import DataConfig, TaskName
from triform.data import readers
from triform.data.audit import AuditSet, audit_sets, shorten_example
from triform.data.files import check_reading
from triform.data.preview import preview_data
from triform.errors import DataError
from triform.reporting.audit_report import describe_set

MAX_AUDITED_ROWS = 20_000
MAX_AUDITED_CHARS = 20_000_000
MAX_READING_SECONDS = 5.0  # of one inspection; of a longer file, the beginning is counted
MAX_SHOWN_LABELS = 50
MAX_CELL_CHARS = 300


class DataRow(NamedTuple):
    """A row of a file, and the line on which it starts."""

    text: str
    label: str
    target: str
    line: int


class DataColumn(msgspec.Struct, kw_only=True):
    """A column of a file.

    Args:
        name: The name of the column.
        selector: The value of a setting such as `data.text_column` that selects the column; "" if it is fixed.
        role: text, label, source, target, or "" if the column is not used.
    """

    name: str
    selector: str
    role: str


class LabelCount(msgspec.Struct, kw_only=True):
    """How often a label occurs."""

    label: str
    count: int


class Inspection(msgspec.Struct, kw_only=True):
    """How a file is read for a task, and what is in it.

    Args:
        task: The task.
        columns: The columns, with what they are used for.
        rows: The first rows, shortened.
        n_rows: The number of rows; of a plain text, the number of lines that are not blank.
        n_chars: The number of characters in the texts.
        labels: The most frequent labels of a classifier, with their counts.
        n_labels: The number of labels.
        findings: What the audit found, as sentences; empty if there are no problems.
        n_audited: The number of rows that the audit read. Long files are audited in part.
        is_complete: Whether the whole file was counted. Of files that take long to read, only the beginning is.
    """

    task: str
    columns: list[DataColumn]
    rows: list[list[str]]
    n_rows: int
    n_chars: int
    labels: list[LabelCount]
    n_labels: int
    findings: list[str]
    n_audited: int
    is_complete: bool


class SlowReadingError(DataError):
    """A file takes long to read."""


@contextmanager
def limit_reading(check: Callable[[], None]) -> Iterator[None]:
    """Let `inspect_data` read for a few seconds only, and call `check` meanwhile, which may raise an error."""
    end_time = time.monotonic() + MAX_READING_SECONDS

    def check_time() -> None:
        check()
        if time.monotonic() > end_time:
            raise SlowReadingError(
                "the file takes too long to be shown before training; triform audit reads all of it"
            )

    with check_reading(check_time):
        yield


def inspect_data(task: TaskName, name: str, data_config: DataConfig) -> Inspection:
    """Inspect a file, two aligned files (`source,target`) or a built-in set.

    Raises:
        DataError: The data cannot be used for the task.
    """
    preview = preview_data(task, name, data_config)
    audited: list[DataRow] = []
    labels: Counter[str] = Counter()
    n_rows = n_chars = 0
    is_complete = True
    try:
        for row in _read_rows(task, name, data_config):
            if len(audited) < MAX_AUDITED_ROWS and n_chars <= MAX_AUDITED_CHARS:
                audited.append(row)
            n_rows += 1
            n_chars += len(row.text) + len(row.target)
            if task == "classify":
                labels[row.label] += 1
    except SlowReadingError:
        if not audited:
            raise
        is_complete = False
    if not audited:
        raise DataError("the file has only blank lines", path=name)
    return Inspection(
        task=task,
        columns=[
            DataColumn(name=column, role=role, selector=selector or "")
            for column, role, selector in zip_longest(preview.columns, preview.roles, preview.selectors)
        ],
        rows=[[cell[:MAX_CELL_CHARS] for cell in row] for row in preview.rows],
        n_rows=n_rows,
        n_chars=n_chars,
        labels=[LabelCount(label=label, count=count) for label, count in labels.most_common(MAX_SHOWN_LABELS)],
        n_labels=len(labels),
        findings=_audit(task, audited),
        n_audited=len(audited),
        is_complete=is_complete,
    )


def _read_rows(task: TaskName, name: str, data_config: DataConfig) -> Iterator[DataRow]:
    """Yield the rows as the audit reads them; those of a plain text are its lines that are not blank."""
    if task == "translate":
        for pair in readers.read_pairs_or_aligned(name, data_config):
            yield DataRow(pair.source, "", pair.target, pair.line)
    elif task == "generate" and readers.is_running_text(name):
        for line, text in readers.read_lines(name):
            if text.strip():
                yield DataRow(text, "", "", line)
    else:
        for row in readers.read_rows(name, data_config, labelled=task == "classify"):
            yield DataRow(row.text, row.label, "", row.line)


def _audit(task: TaskName, rows: list[DataRow]) -> list[str]:
    """Return what the audit of `triform audit` finds in the rows."""
    audit_set = AuditSet(
        texts=[row.text for row in rows],
        labels=[row.label for row in rows] if task == "classify" else (),
        targets=[row.target for row in rows] if task == "translate" else (),
        lines=[row.line for row in rows],
    )
    findings: list[str] = []
    for report in audit_sets({"train": audit_set}).set_reports:
        if report.empty and report.side != "pair":
            findings.append(f"{report.empty:,} rows have an empty {report.side}")
        if report.near and report.side in ("text", "source") and task != "generate":
            findings.append(f"{report.near:,} rows are near duplicates of an earlier row")
        lines = (line.strip().removeprefix("train: ") for line in describe_set(report, task))
        findings += [line.replace("train line", "line") for line in lines if not line.startswith("in train")]
    return [shorten_example(finding) if len(finding) > MAX_CELL_CHARS else finding for finding in findings]
