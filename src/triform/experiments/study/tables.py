"""Format the result of a study: tables for the terminal and in Markdown, CSV with one row per run, and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triform.errors import format_notice
from triform.evaluation.statistics import PairedDifference, decimals_for_uncertainty, describe_p_value
from triform.experiments.study.plan import VALIDATION_SET
from triform.formatting import direction_label, echo, format_duration, has_percent_scale, metric_info, print_table
from triform.io.errors import write_run_text
from triform.reporting.markdown import render_markdown_table

if TYPE_CHECKING:
    from triform.experiments.study.results import Comparison, StudyResult, VariantSummary

TableRow = Sequence[str]

VARIANT_HEADER = ("set", "variant", "n", "mean", "sd", "95 % interval", "parameters", "time")
PAIR_HEADER = ("set", "pair", "n", "difference", "95 % interval", "p", "corrected p")
ZERO_TOLERANCE = 1e-9  # smaller deviations from a mean are rounding errors
N_TEXT_COLUMNS = 2  # the other columns of both tables contain numbers


def write_tables(result: StudyResult) -> None:
    """Write `study.md`, `study.csv` and `study.json` into the folder of the study."""
    for name, text in (("md", to_markdown(result)), ("csv", to_csv(result)), ("json", to_json(result))):
        write_run_text(result.path / f"study.{name}", text)


def study_title(result: StudyResult) -> str:
    """Return a line with the task, the metric and the numbers of variants and seeds."""
    study, info = result.study, metric_info(result.metric)
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    return (
        f"{study.task}, {info.label} ({direction_label(result.metric)}), {len(study.variants)} variants × {seeds}"
    )


# -- rows of all formats


def format_metric_value(value: float, metric: str, n_decimals: int) -> str:
    """Format a value of a metric with its unit."""
    info = metric_info(metric)
    return f"{value * info.scale:.{n_decimals}f}{info.percent_sign}"


def format_interval(low: float, high: float, metric: str, n_decimals: int, unit: str = "") -> str:
    """Format both ends of an interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    low, high = (end * metric_info(metric).scale for end in (low, high))
    return f"{_format_signed(low, n_decimals)} to {_format_signed(high, n_decimals)}{unit}"


def _format_signed(value: float, n_decimals: int, plus: str = "") -> str:
    # + 0.0: no minus before a zero.
    return f"{round(value, n_decimals) + 0.0:{plus}.{n_decimals}f}".replace("-", "−")


def _column_decimals(uncertainties: Sequence[float], metric: str) -> int:
    """Return the number of decimals of a column: two for percentages, otherwise by the largest uncertainty."""
    positive = [
        uncertainty for uncertainty in uncertainties if math.isfinite(uncertainty) and uncertainty > ZERO_TOLERANCE
    ]
    return 2 if has_percent_scale(metric) or not positive else decimals_for_uncertainty(max(positive)) + 1


def variant_rows(result: StudyResult) -> list[TableRow]:
    """Return the rows of the table of variants."""
    n_decimals = _column_decimals(
        [summary.stats.deviation for summary in result.summaries if summary.stats], result.metric
    )
    return [_variant_row(summary, result.metric, n_decimals) for summary in result.summaries]


def _variant_row(summary: VariantSummary, metric: str, n_decimals: int) -> TableRow:
    cost = (f"{summary.parameters:,}", format_duration(summary.seconds))
    if summary.stats is None:
        return (summary.eval_set, summary.variant, "0", "–", "–", "–", *cost)
    mean, deviation, low, high = summary.stats
    sd = format_metric_value(deviation, metric, n_decimals) if summary.n_runs > 1 else "–"
    unit = metric_info(metric).percent_sign
    figures = (
        format_metric_value(mean, metric, n_decimals),
        sd,
        format_interval(low, high, metric, n_decimals, unit),
    )
    return (summary.eval_set, summary.variant, str(summary.n_runs), *figures, *cost)


def pair_rows(result: StudyResult) -> list[TableRow]:
    """Return the rows of the table of pairs."""
    n_decimals = _column_decimals(
        [comparison.difference.half_width for comparison in result.comparisons], result.metric
    )
    return [_pair_row(comparison, result.metric, n_decimals) for comparison in result.comparisons]


def _pair_row(comparison: Comparison, metric: str, n_decimals: int) -> TableRow:
    difference = comparison.difference
    mean_text = _format_signed(difference.mean * metric_info(metric).scale, n_decimals, "+")
    is_untested = difference.pairs == 1 and not math.isfinite(difference.low)
    p_texts = ("–", "–") if is_untested else (format_p_value(difference.p), format_p_value(comparison.corrected_p))
    interval_text = format_interval(difference.low, difference.high, metric, n_decimals)
    return (
        comparison.eval_set,
        f"{comparison.second} − {comparison.first}",
        str(difference.pairs),
        mean_text,
        interval_text,
        *p_texts,
    )


def format_p_value(p: float) -> str:
    """Format a p-value without `p =`."""
    return describe_p_value(p).removeprefix("p ").removeprefix("= ")


def verdict_lines(result: StudyResult) -> list[str]:
    """Return one line for each pair. It names the evaluation set if there are several."""
    lines = []
    for comparison in result.comparisons:
        set_text = f" on {comparison.eval_set}" if len(result.eval_sets) > 1 else ""
        lines.append(f"{comparison.first} and {comparison.second}{set_text}: {comparison.verdict}")
    return lines


def method_notes(result: StudyResult) -> list[str]:
    """Return sentences about how the figures were computed, to be quoted with them."""
    lines = ["± is half of a 95 % interval (Student's t over seeds), which is not corrected for other comparisons."]
    if metric_info(result.metric).percent_sign:
        lines.append("Differences are in percentage points.")
    if result.study.test_files and VALIDATION_SET in result.eval_sets:
        lines.append("Pairs are compared only on the test files, because validation data selected the weights.")
    tests = list(dict.fromkeys(comparison.difference.test for comparison in result.comparisons))
    if tests:
        correction_text = (
            f", corrected for {len(result.comparisons)} comparisons by Holm's method"
            if len(result.comparisons) > 1
            else ""
        )
        lines.append(f"The p-values are two-sided ({'; '.join(tests)}){correction_text}.")
    if any(comparison.over_seeds for comparison in result.comparisons) or any(
        "bootstrap" in test for test in tests
    ):
        lines.append(
            "The bootstrap resamples the test sentences for these trained models and averages BLEU over their "
            "seeds. Its interval says nothing about other seeds."
        )
    lines.append("Paired runs have the same seed: the same batches in the same order and, if all shapes are equal, "
                 "the same initial weights.")  # fmt: skip
    return lines


# -- formats


def print_study(result: StudyResult) -> None:
    """Print the tables, the verdicts and the notes of a study to standard output."""
    text_columns = "l" * N_TEXT_COLUMNS
    echo(f"{result.study.name}: {study_title(result)}\n")
    print_table([VARIANT_HEADER, *variant_rows(result)], align=text_columns)
    if result.comparisons:
        echo()
        print_table([PAIR_HEADER, *pair_rows(result)], align=text_columns)
        echo("\n" + "\n".join(verdict_lines(result)))
        echo("± is half of a 95 % interval.")
    for note in result.notes:
        echo(format_notice(note, info_prefix="note: "))


def to_markdown(result: StudyResult) -> str:
    """Return the result as Markdown."""
    parts = [
        f"# {result.study.name}",
        "",
        study_title(result) + ".",
        "",
        render_markdown_table(VARIANT_HEADER, variant_rows(result), n_text_columns=N_TEXT_COLUMNS),
    ]
    if result.comparisons:
        parts += [
            "",
            render_markdown_table(PAIR_HEADER, pair_rows(result), n_text_columns=N_TEXT_COLUMNS),
            "",
            *(f"- {line}" for line in verdict_lines(result)),
        ]
    if result.notes:
        parts += ["", *(f"- {format_notice(note, info_prefix='note: ')}" for note in result.notes)]
    return "\n".join([*parts, "", " ".join(method_notes(result)), ""])


def to_csv(result: StudyResult) -> str:
    """Return one row for each run. Metrics are not scaled, so an accuracy is between 0 and 1."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    facts = ["variant", "seed", "status", "parameters", "steps", "best_step", "seconds"]
    writer.writerow([*facts, *(f"{result.metric} {name}" for name in result.eval_sets), "folder", "failure"])
    for run in result.runs:
        status = "failed" if run.failure else "ok"
        row = [run.variant, run.seed, status, run.parameters, run.steps, run.best_step, f"{run.seconds:.2f}"]
        writer.writerow(
            [*row, *(run.metric_values.get(name, "") for name in result.eval_sets), run.folder, run.failure]
        )
    return file.getvalue()


def to_json(result: StudyResult) -> str:
    """Return the result as JSON."""
    return json.dumps(to_dict(result), ensure_ascii=False, indent=2) + "\n"


def to_dict(result: StudyResult) -> dict[str, object]:
    """Return the whole result for programs. An infinite end of an interval is null, as JSON has no infinity."""
    study = result.study
    return {
        "name": study.name,
        "task": study.task,
        "metric": result.metric,
        "higher_is_better": metric_info(result.metric).higher_is_better,
        "seeds": list(study.seeds),
        "tests": dict(study.test_files),
        "settings": {variant.name: dict(variant.settings) for variant in study.variants},
        "variants": [
            {
                "set": entry.eval_set,
                "variant": entry.variant,
                "n": entry.n_runs,
                "parameters": entry.parameters,
                "seconds": entry.seconds,
                **(
                    {name: _finite_or_none(value) for name, value in entry.stats._asdict().items()}
                    if entry.stats
                    else {}
                ),
            }
            for entry in result.summaries
        ],
        "pairs": [
            {
                "set": entry.eval_set,
                "first": entry.first,
                "second": entry.second,
                **_difference_to_dict(entry.difference),
                "corrected_p": entry.corrected_p,
                "verdict": entry.verdict,
                **({"over_seeds": _difference_to_dict(entry.over_seeds)} if entry.over_seeds else {}),
            }
            for entry in result.comparisons
        ],
        "runs": [
            {
                "variant": entry.variant,
                "seed": entry.seed,
                "folder": str(entry.folder),
                "failure": entry.failure or None,
                "scores": dict(entry.metric_values),
                "parameters": entry.parameters,
                "steps": entry.steps,
                "best_step": entry.best_step,
                "seconds": entry.seconds,
            }
            for entry in result.runs
        ],
        "notes": list(result.notes),
        "method": method_notes(result),
    }


def _difference_to_dict(difference: PairedDifference) -> dict[str, object]:
    fields: dict[str, object] = {
        name: _finite_or_none(value) if isinstance(value, float) else value
        for name, value in difference._asdict().items()
    }
    fields["difference"] = fields.pop("mean")
    return fields


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
