"""What an audit found, in a table, in words and in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from triform.cli.options import print_table
from triform.formatting import echo, format_metric

if TYPE_CHECKING:
    from triform.data.audit import Audit, Content, Overlap, Rows
    from triform.metrics import Scores

LOOKED_AT = {"pair": ("repeats", "verbatim"), "target": ("repeats", "verbatim", "near", "empty", "overlong")}


def show(found: Audit, task: str, max_len: int, measure: str, *, scored: bool) -> None:
    """The tables, then what they mean."""
    columns = ["repeats", "verbatim", "near", "empty"]
    heads = ["repeats", "(verbatim)", "near", "empty"]
    if max_len:
        columns, heads = [*columns, "overlong"], [*heads, f"over {max_len} {measure}"]
    if task != "generate":
        columns, heads = [*columns, "conflicts"], [*heads, "conflicts" if task == "classify" else "retranslated"]
    rows = [
        [_name(each.name, each.side), f"{each.rows:,}", *(_number(each, name) for name in columns)]
        for each in found.contents
    ]
    print_table([["set", "rows", *heads], *rows])
    if found.overlaps:
        echo("")
        print_table([["shared", "rows", "seen", "(verbatim)", "near", "unseen"], *map(_shared, found.overlaps)])
    echo("")
    for line in (*_labels(found), *_meanings(found, task, scored=scored)):
        echo(line)


def _number(content: Content, column: str) -> str:
    looked_at = LOOKED_AT.get(content.side, (column,))
    return f"{getattr(content, column):,}" if column in looked_at else "-"


def _name(name: str, side: str) -> str:
    return name if side == "text" else f"{name} {side}"


def _shared(overlap: Overlap) -> list[str]:
    total, seen, near = len(overlap.seen), int(overlap.seen.sum()), int(overlap.near.sum())
    name = f"{_name(overlap.name, overlap.side)} in {overlap.within}"
    return [
        name,
        f"{total:,}",
        f"{seen:,}",
        f"{overlap.verbatim:,}",
        "-" if overlap.side == "pair" else f"{near:,}",
        f"{total - seen:,}",
    ]


def _labels(found: Audit) -> Iterator[str]:
    for name, counts in found.labels.items():
        total = sum(counts.values())
        shares = [f"{label} {100 * count / total:.1f} %" for label, count in list(counts.items())[:8]]
        yield f"labels of {name}: {', '.join(shares)}{', ...' if len(counts) > 8 else ''}"
    learned = found.labels.get("train", {})
    for name, counts in found.labels.items():
        if name != "train" and learned:
            usual = next(iter(learned))
            share = counts.get(usual, 0) / sum(counts.values())
            scores = format_metric("accuracy", share)
            yield f"  always saying {usual!r}, the usual label of train, scores {scores} on {name}"
            strange = [label for label in counts if label not in learned]
            if strange:
                yield f"  {name} has labels that train never has: {', '.join(map(repr, strange[:8]))}"


def _meanings(found: Audit, task: str, *, scored: bool) -> Iterator[str]:
    if len({each.name for each in found.contents}) == 1:
        yield "only one set was given, so leaks between sets could not be looked for"
    for overlap in found.overlaps:
        if overlap.side in ("text", "source") and overlap.within == "train":
            yield from _leak(overlap, task, scored=scored)
        elif overlap.within == "train" and overlap.side == "pair" and overlap.seen.any():
            yield f"{overlap.name}: of these, {int(overlap.seen.sum()):,} with the very same translation"
    for content in found.contents:
        yield from _within(content, task)


def _leak(overlap: Overlap, task: str, *, scored: bool) -> Iterator[str]:
    total, seen, near = len(overlap.seen), int(overlap.seen.sum()), int(overlap.near.sum())
    unit, name = "sources" if task == "translate" else "rows", overlap.name
    if not seen:
        told = f"but {near:,} nearly so" if near else "nor near anything there"
        yield f"{name}: none of its {total:,} {unit} is in train, {told}"
        yield from (f"    {example}" for example in overlap.examples)
        return
    text = f"{name}: {seen:,} of {total:,} {unit} ({100 * seen / total:.1f} %) are in train too"
    if task == "classify":
        memory = overlap.same_label
        scores = format_metric("accuracy", memory / total)
        text += f", {memory:,} of them with the same label; remembering scores {scores} here"
    if task == "generate":
        text += f", with {100 * overlap.share:.1f} % of its characters"
    yield text + (f"; {near:,} more nearly so" if near else "")
    how = "their scores are below" if scored else "--run RUN scores them apart"
    rest = f"quote the score on the {total - seen:,} unseen as well" if seen < total else "nothing else is left"
    yield f"  what they score is memory; {rest} ({how})"
    yield from (f"    {example}" for example in overlap.examples)


def _within(content: Content, task: str) -> Iterator[str]:
    name = _name(content.name, content.side)
    if content.conflicts and task == "classify":
        yield f"{name}: {content.conflicts:,} rows have a text that stands there with another label too"
    if content.repeats and content.name == "train" and content.side in ("text", "pair") and task != "generate":
        yield (
            f"{name}: {content.repeats:,} repeats weigh more than other rows, and fall on both sides "
            "where validation rows are held out of this file"
        )
    if content.examples and content.side in ("text", "pair"):
        yield f"  in {name}:"
        yield from (f"    {example}" for example in content.examples)


def as_json(found: Audit, task: str, rows: Mapping[str, Rows], scores: Mapping[str, Scores]) -> dict[str, object]:
    """Everything, with the lines of the rows that are seen or near, so that they can be taken out."""
    overlaps = []
    for each in found.overlaps:
        lines = {
            kind: [rows[each.name].line(int(row)) for row in flags.nonzero()[0]]
            for kind, flags in (("seen_lines", each.seen), ("near_lines", each.near))
        }
        plain = {
            name: getattr(each, name) for name in ("name", "within", "side", "verbatim", "same_label", "share")
        }
        counts = {"rows": len(each.seen), "seen": int(each.seen.sum()), "near": int(each.near.sum())}
        overlaps.append({**plain, **counts, "leak": each.leak, **lines, "examples": list(each.examples)})
    return {
        "task": task,
        "leaks": sum(int(each.seen.sum()) for each in found.leaks if each.side != "pair"),
        "conflicts": found.conflicts,
        "sets": [asdict(content) for content in found.contents],
        "shared": overlaps,
        "labels": found.labels,
        "scores": dict(scores),
    }
