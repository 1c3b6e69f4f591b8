"""Outcomes as Markdown: reported figures, ours with intervals, baselines, verdicts, and how to repeat them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from triform.pages import duration
from triform.reproduce.outcome import Outcome
from triform.reproduce.system import Column, System, Target, Variant
from triform.stats import holm, paired, spread, verdict

NOT_RUN = "not run"
ROUNDING = 1e-9  # of a mean: what is just the target on paper may lie a hair beside it

FEWEST_PAIRS = 2  # seeds that both of two variants have


def section(system: System, outcome: Outcome | None) -> str:
    """One system: what was reported, what came out, and what may be said of it."""
    parts = [f"## {system.title}", f"`{system.name}` ({system.report})"]
    if outcome is None or not (outcome["variants"] or outcome["failures"]):
        return "\n\n".join(
            [*parts, f"Not run yet: `triform reproduce {system.name}`.", *system.notes, *_plans(system)]
        )
    if outcome["quick"]:
        parts.append("A quick run: it shows that everything runs, and no figure means anything.")
    parts += [_table(system, outcome), *_plans(system), *_remarks(system, outcome)]
    if not outcome["quick"] and (said := [*judgements(system, outcome), *pairing_verdicts(system, outcome)]):
        parts.append("\n".join(f"- {line}" for line in said))
    parts += [*system.notes, *_samples(outcome), _how(outcome)]
    return "\n\n".join(part for part in parts if part)


def _plans(system: System) -> list[str]:
    return ["\n".join(f"- {variant.name}: {variant.about}" for variant in system.variants)]


def made_of(outcome: Outcome, name: str) -> dict[str, Any] | None:
    """What came out of a variant."""
    return next((each for each in outcome["variants"] if each["name"] == name), None)


def values(found: Mapping[str, Any], column: str, seeds: Container[int] | None = None) -> list[float]:
    """The figure of each seed, or of these; empty where it was not measured."""
    name, _, score = column.rpartition(".")
    runs = [run for run in found["runs"] if seeds is None or run["seed"] in seeds]
    return [run["scores"][name][score] for run in runs if score in run["scores"].get(name, {})]


def shown(column: Column, numbers: Sequence[float]) -> str:
    """The mean, with half of its 95 % interval where there are several."""
    if not numbers:
        return "–"
    times, unit = (100.0, " %") if column.kind == "percent" else (1.0, " s" if column.kind == "seconds" else "")
    known = spread(numbers)
    figure = f"{times * known.mean:,.{column.digits}f}"
    reach = f" ± {times * (known.high - known.mean):,.{column.digits}f}" if len(numbers) > 1 else ""
    return f"{figure}{reach}{unit}"


def _table(system: System, outcome: Outcome) -> str:
    head = ["", *(column.title for column in system.columns), "parameters", "seeds", "training"]
    rows = []
    for variant in system.variants:
        if variant.reported:
            figures = [_single(column, variant.reported) for column in system.columns]
            rows.append([f"*reported, {variant.name}*", *figures, "", "", ""])
        rows.append(
            _row(system, variant, made_of(outcome, variant.name), outcome["failures"].get(variant.name, ""))
        )
    rows += _baseline_rows(system, outcome)
    return markdown(head, rows)


def _single(column: Column, figures: Mapping[str, float]) -> str:
    return shown(column, [figures[column.key]]) if column.key in figures else ""


def _row(system: System, variant: Variant, found: Mapping[str, Any] | None, failure: str) -> list[str]:
    if found is None:
        return [
            f"**{variant.name}**",
            f"failed: {failure}" if failure else NOT_RUN,
            *[""] * (len(system.columns) + 2),
        ]
    figures = [shown(column, values(found, column.key)) for column in system.columns]
    return [
        f"**{variant.name}**",
        *figures,
        f"{found['parameters']:,}",
        str(len(found["runs"])),
        duration(found["seconds"]),
    ]


def _baseline_rows(system: System, outcome: Outcome) -> list[list[str]]:
    """`baselines` holds, for each, its scores by set; those that could not be fitted hold a reason."""
    rows = []
    for name, sets in outcome["baselines"].items():
        flat = {f"{place}.{score}": value for place, scores in sets.items() for score, value in scores.items()}
        # a baseline writes one translation, whatever the decoding
        flat |= {
            f"test {how}.{key[5:]}": v
            for how in ("greedy", "beam 5")
            for key, v in flat.items()
            if key[:5] == "test."
        }
        rows.append([f"baseline: {name}", *(_single(column, flat) for column in system.columns), "", "", ""])
    for name, reason in outcome["unfit"].items():
        rows.append([f"baseline: {name}", f"not fitted: {reason}", *[""] * (len(system.columns) + 2)])
    return rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _remarks(system: System, outcome: Outcome) -> list[str]:
    found = []
    if any(len(each["runs"]) > 1 for each in outcome["variants"]):
        found.append("Figures of several seeds are their mean, ± half of its 95 % interval.")
    if alone := [each["name"] for each in outcome["variants"] if len(each["runs"]) == 1]:
        found.append(f"One seed, so no interval: {', '.join(alone)}.")
    for test, leak in outcome["leaks"].items():
        if leak["seen"]:
            verb = "is" if leak["seen"] == 1 else "are"
            found.append(
                f"{leak['seen']:,} of the {leak['rows']:,} texts of {test} {verb} also in the training file."
            )
    for each in outcome["variants"]:
        if told := each.get("vectors", {}).get("matched"):
            found.append(f"{each['name']}: {told}.")
    if outcome.get("signature"):
        found.append(f"sacreBLEU: `{outcome['signature']}`.")
    return [" ".join(found)]


def judgements(system: System, outcome: Outcome) -> list[str]:
    """Each target with whether it was reached."""
    found = []
    for target in system.targets:
        made = made_of(outcome, target.variant)
        if made is None:
            continue
        column = next(each for each in system.columns if each.key == target.column)
        numbers = values(made, target.column)
        low, high, bar = _bounds(system, outcome, target, column)
        reached = bool(numbers) and low - ROUNDING <= spread(numbers).mean <= high + ROUNDING
        about = f" ({target.about})" if target.about else ""
        word = "reached" if reached else "**not reached**"
        if lacking := _not_run(system, outcome, target):
            word = f"open, since {', '.join(lacking)} {'was' if len(lacking) == 1 else 'were'} not run"
        found.append(f"{target.variant}, {column.title}: {shown(column, numbers)}; wanted {bar}{about}: {word}")
    return found


def _not_run(system: System, outcome: Outcome, target: Target) -> list[str]:
    """Variants that a target is measured by, and that have no figures yet."""
    beside = [variant.name for variant in system.variants if variant.setting == target.above_all]
    return [name for name in beside if made_of(outcome, name) is None]


def _bounds(system: System, outcome: Outcome, target: Target, column: Column) -> tuple[float, float, str]:
    if target.above_all:
        names = [variant.name for variant in system.variants if variant.setting == target.above_all]
        means = [
            spread(numbers).mean
            for name in names
            if (made := made_of(outcome, name)) and (numbers := values(made, target.column))
        ]
        low = max(means, default=math.nan) + target.by
        figure = f", {_single_figure(column, low)}" if means else ""
        return low, math.inf, f"{target.by:g} above the best of {', '.join(names)}{figure}"
    ends = [_single_figure(column, end) for end in (target.low, target.high)]
    if math.isinf(target.high):
        return target.low, target.high, f"{ends[0]} or more"
    if math.isinf(target.low):
        return target.low, target.high, f"{ends[1]} or less"
    return target.low, target.high, f"{ends[0]} to {ends[1]}"


def _single_figure(column: Column, value: float) -> str:
    return shown(column, [value]) if math.isfinite(value) else ""


def pairing_verdicts(system: System, outcome: Outcome) -> list[str]:
    """Whether paired variants differ, in words, over the seeds that both have, corrected for all looks together."""
    looked = []
    for pairing in system.pairings:
        first, second = (made_of(outcome, name) for name in (pairing.first, pairing.second))
        if first is None or second is None:
            continue
        both = {run["seed"] for run in first["runs"]} & {run["seed"] for run in second["runs"]}
        if len(both) < FEWEST_PAIRS:
            continue
        looked += [
            (pairing, column, paired(values(first, column, both), values(second, column, both)))
            for column in pairing.columns
        ]
    corrected = holm([difference.p for _, _, difference in looked])
    found = []
    for (pairing, column, difference), p in zip(looked, corrected, strict=True):
        title = next(each.title for each in system.columns if each.key == column)
        score, many = column.rpartition(".")[2], len(looked)
        said = verdict(pairing.first, pairing.second, difference, score, corrected=p, comparisons=many)
        found.append(f"{pairing.question} {title}: {said}")
    return found


def _samples(outcome: Outcome) -> list[str]:
    """What the last variant wrote, prompts included."""
    parts = []
    found = outcome["variants"][-1] if outcome["variants"] else {}
    for sample in found.get("samples", ()):
        after = f"after `{sample['input']}`" if sample["input"] else "from nothing"
        parts.append(f"{found['name']} goes on {after}:\n\n```\n{sample['input']}{sample['output'].strip()}\n```")
    return parts


def _how(outcome: Outcome) -> str:
    """Where each variant was run, and the command that repeats it."""
    head = ["", "command", "where", "with", "trained in", "vocabulary", "date"]
    rows = []
    for found in outcome["variants"]:
        made = found["made"]
        versions = f"torch {made['torch']}, Triform {made['triform']}, Python {made['python']}"
        rows.append(
            [
                found["name"],
                f"`{made['command']}`",
                made["device"],
                versions,
                found["trained_in"],
                f"{found['vocabulary']:,}",
                made["date"],
            ]
        )
    return markdown(head, rows)


def summary(systems: Mapping[str, System], outcomes: Mapping[str, Outcome | None]) -> str:
    """One line a system."""
    head = ["system", "figure", "reported", "as reported, ours", "best, ours", "targets reached"]
    rows = []
    for name, system in systems.items():
        outcome = outcomes[name]
        columns = system.columns[: system.headline]
        figures = " / ".join(column.title for column in columns)
        rows.append(
            [
                f"[{name}](#{anchor(system.title)})",
                figures,
                _reported_cell(system),
                *(_cell(system, outcome, columns, setting) for setting in ("as-reported", "best")),
                _reached(system, outcome),
            ]
        )
    return markdown(head, rows)


def _reported_cell(system: System) -> str:
    """The reported figures of the columns shown, or what was reported instead."""
    columns = [each for each in system.columns if each.key == system.reported_instead]
    lines = [
        f"{variant.name}: {' / '.join(figures)}"
        for variant in system.variants
        if (
            figures := [
                _single(column, variant.reported) for column in columns or system.columns[: system.headline]
            ]
        )
        and any(figures)
    ]
    instead = f"<br>({columns[0].title}, or what resembles it)" if columns else ""
    return "<br>".join(lines).removesuffix(" / ") + instead if lines else "–"


def _cell(system: System, outcome: Outcome | None, columns: Sequence[Column], setting: str) -> str:
    lines = []
    if not system.chosen(setting):
        return "–"
    for variant in system.chosen(setting):
        found = made_of(outcome, variant.name) if outcome and not outcome["quick"] else None
        if found:
            lines.append(f"{variant.name}: " + " / ".join(shown(each, values(found, each.key)) for each in columns))
    return "<br>".join(lines) or NOT_RUN


def _reached(system: System, outcome: Outcome | None) -> str:
    said = judgements(system, outcome) if outcome and not outcome["quick"] else []
    return f"{sum(line.endswith(': reached') for line in said)} of {len(system.targets)}" if said else "–"


def anchor(title: str) -> str:
    """What GitHub makes of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")
