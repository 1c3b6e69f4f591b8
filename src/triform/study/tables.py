"""A study's outcome as text: a table for the terminal, Markdown, CSV with a row a run, JSON with everything."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence

from triform.errors import show_notice
from triform.formatting import out_of_hundred
from triform.pages import duration
from triform.settings import chosen
from triform.stats import Difference, decimals, measure, show_p
from triform.study.plan import VALIDATION
from triform.study.results import Comparison, Outcome, Summary, better
from triform.training.folder import write_text

Row = Sequence[str]

VARIANT_HEAD = ("set", "variant", "n", "mean", "sd", "95 % interval", "parameters", "time")
PAIR_HEAD = ("set", "pair", "n", "difference", "95 % interval", "p", "corrected p")
ROUNDING = 1e-9  # equal values deviate from their mean by less
TEXT_COLUMNS = 2  # the first ones of both; the rest are numbers


def write_tables(outcome: Outcome) -> None:
    for name, text in (("md", markdown(outcome)), ("csv", as_csv(outcome)), ("json", as_json(outcome))):
        write_text(outcome.path / f"study.{name}", text)


def title(outcome: Outcome) -> str:
    study, how = outcome.study, measure(outcome.metric)
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    return f"{study.task}, {how.name} ({better(outcome.metric)}), {len(study.variants)} variants × {seeds}"


# -- rows that all forms share


def number(value: float, metric: str, places: int) -> str:
    how = measure(metric)
    return f"{value * how.times:.{places}f}{how.percent}"


def interval(low: float, high: float, metric: str, places: int, unit: str = "") -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    low, high = (end * measure(metric).times for end in (low, high))
    return f"{_signed(low, places)} to {_signed(high, places)}{unit}"


def _signed(value: float, places: int, plus: str = "") -> str:
    return f"{round(value, places) + 0.0:{plus}.{places}f}".replace("-", "−")  # + 0.0: no minus before a zero


def _places(reaches: Sequence[float], metric: str) -> int:
    """Digits after the point, the same in a whole column: two where a metric is out of a hundred.

    Elsewhere they suit the widest of several uncertainties; what is below rounding is none.
    """
    known = [reach for reach in reaches if math.isfinite(reach) and reach > ROUNDING]
    return 2 if out_of_hundred(metric) or not known else decimals(max(known)) + 1


def variant_rows(outcome: Outcome) -> list[Row]:
    places = _places([each.spread.deviation for each in outcome.summaries if each.spread], outcome.metric)
    return [_variant_row(each, outcome.metric, places) for each in outcome.summaries]


def _variant_row(summary: Summary, metric: str, places: int) -> Row:
    cost = (f"{summary.parameters:,}", duration(summary.seconds))
    if summary.spread is None:
        return (summary.set, summary.variant, "0", "–", "–", "–", *cost)
    mean, deviation, low, high = summary.spread
    sd = number(deviation, metric, places) if summary.n > 1 else "–"
    unit = measure(metric).percent
    shown = (number(mean, metric, places), sd, interval(low, high, metric, places, unit))
    return (summary.set, summary.variant, str(summary.n), *shown, *cost)


def pair_rows(outcome: Outcome) -> list[Row]:
    places = _places([each.difference.reach for each in outcome.comparisons], outcome.metric)
    return [_pair_row(each, outcome.metric, places) for each in outcome.comparisons]


def _pair_row(each: Comparison, metric: str, places: int) -> Row:
    difference = each.difference
    size = _signed(difference.mean * measure(metric).times, places, "+")
    untested = difference.pairs == 1 and not math.isfinite(difference.low)
    ps = ("–", "–") if untested else (bare(difference.p), bare(each.corrected))
    ends = interval(difference.low, difference.high, metric, places)
    return (each.set, f"{each.second} − {each.first}", str(difference.pairs), size, ends, *ps)


def bare(p: float) -> str:
    return show_p(p).removeprefix("p ").removeprefix("= ")


def verdicts(outcome: Outcome) -> list[str]:
    """A line a pair; the set is named where there are several."""
    lines = []
    for each in outcome.comparisons:
        where = f" on {each.set}" if len(outcome.sets) > 1 else ""
        lines.append(f"{each.first} and {each.second}{where}: {each.verdict}")
    return lines


def method(outcome: Outcome) -> list[str]:
    """How the figures were made, to be quoted with them."""
    lines = ["± is half of a 95 % interval; intervals are 95 %, Student's t over seeds, each by itself."]
    if measure(outcome.metric).percent:
        lines.append("Differences are in percentage points.")
    if outcome.study.tests and VALIDATION in outcome.sets:
        lines.append("Validation chose the weights that are kept, so pairs are compared on the test files alone.")
    tests = list(dict.fromkeys(each.difference.test for each in outcome.comparisons))
    if tests:
        many = (
            f", corrected after Holm for {len(outcome.comparisons)} comparisons"
            if len(outcome.comparisons) > 1
            else ""
        )
        lines.append(f"p: {'; '.join(tests)}; two-sided{many}.")
    if any(each.over_seeds for each in outcome.comparisons) or any("bootstrap" in test for test in tests):
        lines.append(
            "A bootstrap draws other sentences for these trained models, averages BLEU over their seeds, and gives "
            "the interval of the difference; it says nothing of other seeds."
        )
    lines.append("A pair shares its seed: the same batches in the same order and, where all shapes are equal, "
                 "the same initial weights.")  # fmt: skip
    return lines


# -- each form


def as_text(outcome: Outcome) -> str:
    parts = [f"{outcome.study.name}: {title(outcome)}", "", *_aligned([VARIANT_HEAD, *variant_rows(outcome)])]
    if outcome.comparisons:
        parts += ["", *_aligned([PAIR_HEAD, *pair_rows(outcome)]), "", *verdicts(outcome)]
        parts.append("± is half of a 95 % interval.")
    parts += [show_notice(note, fact="note: ") for note in outcome.notes]
    return "\n".join(parts) + "\n"


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def padded(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if column < TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(cells)
        )

    return [padded(row) for row in rows]


def markdown(outcome: Outcome) -> str:
    parts = [f"# {outcome.study.name}", "", title(outcome) + ".", "", *_piped(VARIANT_HEAD, variant_rows(outcome))]
    if outcome.comparisons:
        parts += ["", *_piped(PAIR_HEAD, pair_rows(outcome)), "", *(f"- {line}" for line in verdicts(outcome))]
    if outcome.notes:
        parts += ["", *(f"- {show_notice(note, fact='note: ')}" for note in outcome.notes)]
    return "\n".join([*parts, "", " ".join(method(outcome)), ""])


def _piped(head: Row, rows: Sequence[Row]) -> list[str]:
    rule = ["---"] * TEXT_COLUMNS + ["---:"] * (len(head) - TEXT_COLUMNS)
    return [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in (head, rule, *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def as_csv(outcome: Outcome) -> str:
    """A row a run, scores as they are: shares between 0 and 1."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    facts = ["variant", "seed", "status", "parameters", "steps", "best_step", "seconds"]
    writer.writerow([*facts, *(f"{outcome.metric} {name}" for name in outcome.sets), "folder", "failure"])
    for each in outcome.results:
        status = "failed" if each.failure else "ok"
        row = [each.variant, each.seed, status, each.parameters, each.steps, each.best_step, f"{each.seconds:.2f}"]
        writer.writerow([*row, *(each.scores.get(name, "") for name in outcome.sets), each.folder, each.failure])
    return file.getvalue()


def as_json(outcome: Outcome) -> str:
    return json.dumps(tree(outcome), ensure_ascii=False, indent=2) + "\n"


def tree(outcome: Outcome) -> dict[str, object]:
    """Everything, for programs; JSON has no infinity, so an unknown end of an interval is null."""
    study = outcome.study
    return {
        "name": study.name,
        "task": study.task,
        "metric": outcome.metric,
        "higher_is_better": measure(outcome.metric).higher_is_better,
        "seeds": list(study.seeds),
        "tests": dict(study.tests),
        "settings": {variant.name: dict(chosen(variant.asked)) for variant in study.variants},
        "variants": [
            {
                "set": each.set,
                "variant": each.variant,
                "n": each.n,
                "parameters": each.parameters,
                "seconds": each.seconds,
                **({name: _finite(value) for name, value in each.spread._asdict().items()} if each.spread else {}),
            }
            for each in outcome.summaries
        ],
        "pairs": [
            {
                "set": each.set,
                "first": each.first,
                "second": each.second,
                **_difference(each.difference),
                "corrected_p": each.corrected,
                "verdict": each.verdict,
                **({"over_seeds": _difference(each.over_seeds)} if each.over_seeds else {}),
            }
            for each in outcome.comparisons
        ],
        "runs": [
            {
                "variant": each.variant,
                "seed": each.seed,
                "folder": str(each.folder),
                "failure": each.failure or None,
                "scores": dict(each.scores),
                "parameters": each.parameters,
                "steps": each.steps,
                "best_step": each.best_step,
                "seconds": each.seconds,
            }
            for each in outcome.results
        ],
        "notes": list(outcome.notes),
        "method": method(outcome),
    }


def _difference(difference: Difference) -> dict[str, object]:
    found: dict[str, object] = {
        name: _finite(value) if isinstance(value, float) else value for name, value in difference._asdict().items()
    }
    found["difference"] = found.pop("mean")
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
