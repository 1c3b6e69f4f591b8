"""Print the result of an audit as tables and sentences, or return it for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from triform.data.audit import AuditReport, AuditSet, Overlap, SetReport
from triform.evaluation.metrics import Metrics
from triform.formatting import echo, format_metric, print_table

COLUMNS_BY_SIDE = {"pair": ("repeats", "verbatim"), "target": ("repeats", "verbatim", "near", "empty", "overlong")}


def print_report(report: AuditReport, task: str, max_len: int, length_unit: str, *, has_metrics: bool) -> None:
    """Print the tables, and sentences that say what they mean."""
    columns = ["repeats", "verbatim", "near", "empty"]
    headers = ["duplicates", "(verbatim)", "near", "empty"]
    if max_len:
        columns, headers = [*columns, "overlong"], [*headers, f"over {max_len} {length_unit}"]
    if task != "generate":
        columns, headers = (
            [*columns, "conflicts"],
            [*headers, "conflicts" if task == "classify" else "multiple targets"],
        )
    rows = [
        [
            _format_set_name(set_report.name, set_report.side),
            f"{set_report.rows:,}",
            *(_format_count(set_report, name) for name in columns),
        ]
        for set_report in report.set_reports
    ]
    print_table([["set", "rows", *headers], *rows])
    if report.overlaps:
        echo("")
        print_table(
            [
                ["overlap", "rows", "seen", "(verbatim)", "near", "unseen"],
                *map(_format_overlap_row, report.overlaps),
            ]
        )
    echo("")
    for line in (*_describe_labels(report), *_describe_report(report, task, has_metrics=has_metrics)):
        echo(line)


def _format_count(set_report: SetReport, column: str) -> str:
    columns = COLUMNS_BY_SIDE.get(set_report.side, (column,))
    return f"{getattr(set_report, column):,}" if column in columns else "-"


def _format_set_name(name: str, side: str) -> str:
    return name if side == "text" else f"{name} {side}"


def _format_overlap_row(overlap: Overlap) -> list[str]:
    total, n_seen, n_near = len(overlap.seen), int(overlap.seen.sum()), int(overlap.near.sum())
    name = f"{_format_set_name(overlap.name, overlap.side)} in {overlap.within}"
    return [
        name,
        f"{total:,}",
        f"{n_seen:,}",
        f"{overlap.verbatim:,}",
        "-" if overlap.side == "pair" else f"{n_near:,}",
        f"{total - n_seen:,}",
    ]


def _describe_labels(report: AuditReport) -> Iterator[str]:
    for name, counts in report.label_counts.items():
        total = sum(counts.values())
        shares = [f"{label} {100 * count / total:.1f} %" for label, count in list(counts.items())[:8]]
        yield f"labels of {name}: {', '.join(shares)}{', ...' if len(counts) > 8 else ''}"
    train_labels = report.label_counts.get("train", {})
    for name, counts in report.label_counts.items():
        if name != "train" and train_labels:
            majority_label = next(iter(train_labels))
            share = counts.get(majority_label, 0) / sum(counts.values())
            accuracy = format_metric("accuracy", share)
            yield f"  predicting the most frequent label of train, {majority_label!r}, gives {accuracy} on {name}"
            unseen_labels = [label for label in counts if label not in train_labels]
            if unseen_labels:
                yield f"  {name} has labels that are not in train: {', '.join(map(repr, unseen_labels[:8]))}"


def _describe_report(report: AuditReport, task: str, *, has_metrics: bool) -> Iterator[str]:
    if len({entry.name for entry in report.set_reports}) == 1:
        yield "only one set was given; add --valid or --test to look for leaks between sets"
    for overlap in report.overlaps:
        if overlap.side in ("text", "source") and overlap.within == "train":
            yield from _describe_leak(overlap, task, has_metrics=has_metrics)
        elif overlap.within == "train" and overlap.side == "pair" and overlap.seen.any():
            yield f"{overlap.name}: {int(overlap.seen.sum()):,} of these have the same translation in train"
    for set_report in report.set_reports:
        yield from describe_set(set_report, task)


def _describe_leak(overlap: Overlap, task: str, *, has_metrics: bool) -> Iterator[str]:
    total, n_seen, n_near = len(overlap.seen), int(overlap.seen.sum()), int(overlap.near.sum())
    unit, name = "sources" if task == "translate" else "rows", overlap.name
    if not n_seen:
        near_note = (
            f"but {n_near:,} have a near duplicate there" if n_near else "and none has a near duplicate there"
        )
        yield f"{name}: none of the {total:,} {unit} is in train, {near_note}"
        yield from (f"    {example}" for example in overlap.examples)
        return
    text = f"{name}: {n_seen:,} of {total:,} {unit} ({100 * n_seen / total:.1f} %) are also in train"
    if task == "classify":
        n_same_label = overlap.same_label
        accuracy = format_metric("accuracy", n_same_label / total)
        text += (
            f", {n_same_label:,} of them with the same label; memorising train gives an accuracy of {accuracy} here"
        )
    if task == "generate":
        text += f", which is {100 * overlap.share:.1f} % of the characters"
    yield text + (f"; {n_near:,} more have a near duplicate there" if n_near else "")
    hint = "see below" if has_metrics else "--run RUN computes them"
    advice = (
        f"also report the metrics of the {total - n_seen:,} unseen {unit} ({hint})"
        if n_seen < total
        else f"there are no unseen {unit}"
    )
    yield f"  metrics of seen {unit} measure memory; {advice}"
    yield from (f"    {example}" for example in overlap.examples)


def describe_set(set_report: SetReport, task: str) -> Iterator[str]:
    """Yield lines about the problems within a set. Lines with examples are indented."""
    name = _format_set_name(set_report.name, set_report.side)
    if set_report.conflicts and task == "classify":
        yield f"{name}: {set_report.conflicts:,} rows have a text that also occurs with another label"
    if (
        set_report.repeats
        and set_report.name == "train"
        and set_report.side in ("text", "pair")
        and task != "generate"
    ):
        yield (
            f"{name}: the {set_report.repeats:,} duplicates have more weight in training than other rows, and leak "
            "into the validation data if that is split off this file"
        )
    if set_report.examples and set_report.side in ("text", "pair"):
        yield f"  in {name}:"
        yield from (f"    {example}" for example in set_report.examples)


def report_to_dict(
    report: AuditReport, task: str, rows: Mapping[str, AuditSet], metrics: Mapping[str, Metrics]
) -> dict[str, object]:
    """Return the whole result, with the line numbers of seen rows and near duplicates, as `--json` prints it."""
    overlap_rows = []
    for overlap in report.overlaps:
        lines = {
            kind: [rows[overlap.name].line_number(int(row)) for row in flags.nonzero()[0]]
            for kind, flags in (("seen_lines", overlap.seen), ("near_lines", overlap.near))
        }
        fields = {
            name: getattr(overlap, name) for name in ("name", "within", "side", "verbatim", "same_label", "share")
        }
        counts = {"rows": len(overlap.seen), "seen": int(overlap.seen.sum()), "near": int(overlap.near.sum())}
        overlap_rows.append({**fields, **counts, "leak": overlap.leak, **lines, "examples": list(overlap.examples)})
    return {
        "task": task,
        "leaks": sum(int(overlap.seen.sum()) for overlap in report.leaks if overlap.side != "pair"),
        "conflicts": report.n_conflicts,
        "sets": [asdict(set_report) for set_report in report.set_reports],
        "shared": overlap_rows,
        "labels": report.label_counts,
        "scores": dict(metrics),
    }
