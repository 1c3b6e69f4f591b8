"""The summary of the results page: a row for each figure, and links to the studies without reported figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn, ReferenceSystem, SystemVariant
from reproduce.tables import NOT_RUN_TEXT, target_status
from reproduce.values import (
    best_baseline,
    find_variant_result,
    format_mean_interval,
    seed_values,
)
from triform.evaluation.statistics import summarise
from triform.formatting import metric_info
from triform.reporting.markdown import render_markdown_table

HEADER = ("system", "metric", "variant", "reported", "baseline", "ours", "verdict")
N_TEXT_COLUMNS = 3
TARGET_TEXTS = {"reached": "target reached", "**not reached**": "**target missed**"}


def summary_table(systems: Mapping[str, ReferenceSystem], results: Mapping[str, ExperimentResult | None]) -> str:
    """Return the table of the systems that have reported figures. Every row is one metric of one variant.

    Args:
        systems: The systems by their names.
        results: The stored result of each system; None if it was not run.
    """
    rows: list[list[str]] = []
    for name, system in systems.items():
        result = results[name]
        if result and result["quick"]:
            result = None
        link = f"[{name}](results/{name}.md)"
        for column in _summary_columns(system):
            title = column.title
            for variant in system.variants:
                if column.key == system.reported_column and column.key not in variant.reported_metrics:
                    continue
                rows.append([link, title, variant.name, *_figures(system, result, column, variant)])
                link = title = ""  # a name is written once, in the first row that it is true for
    return render_markdown_table(HEADER, rows, n_text_columns=N_TEXT_COLUMNS)


def study_links(systems: Mapping[str, ReferenceSystem], more: Mapping[str, str]) -> str:
    """Return a list of links to the pages of systems that have no reported figures.

    Args:
        systems: The systems by their names.
        more: The titles of further pages, by the names that `python -m reproduce` knows.
    """
    titles = {name: system.title for name, system in systems.items() if not _summary_columns(system)}
    lines = [f"- [{title}](results/{name}.md), `{name}`" for name, title in {**titles, **more}.items()]
    return "\n".join(lines)


def compare_with_baseline(metric: str, values: Sequence[float], baseline: float) -> str:
    """Say whether the mean of several seeds differs from a baseline by more than half of its 95 % interval.

    >>> compare_with_baseline("accuracy", [0.91, 0.92, 0.91], 0.89)
    'better than the baseline'
    >>> compare_with_baseline("perplexity", [91.0, 92.0, 91.0], 90.0)
    'no difference shown'
    """
    if len(values) == 1:
        return "one seed, no interval"
    summary = summarise(values)
    if summary.low <= baseline <= summary.high:
        return "no difference shown"
    is_better = (summary.mean > baseline) == metric_info(metric).higher_is_better
    return f"{'better' if is_better else 'worse'} than the baseline"


def _summary_columns(system: ReferenceSystem) -> list[MetricColumn]:
    """Return the headline columns and the column that was reported, or nothing if nothing was reported."""
    if not any(variant.reported_metrics for variant in system.variants):
        return []
    reported = [column for column in system.columns if column.key == system.reported_column]
    return [*system.columns[: system.n_headline_columns], *reported]


def _figures(
    system: ReferenceSystem, result: ExperimentResult | None, column: MetricColumn, variant: SystemVariant
) -> list[str]:
    """Return the reported figure, the best baseline, our figure and the verdict on it."""
    reported = variant.reported_metrics.get(column.key)
    baseline = best_baseline(column, result) if result else None
    variant_result = find_variant_result(result, variant.name) if result else None
    values = seed_values(variant_result, column.key) if variant_result else []
    return [
        "" if reported is None else format_mean_interval(column, [reported]),
        f"{format_mean_interval(column, [baseline[1]])} ({baseline[0]})" if baseline else "",
        format_mean_interval(column, values) if variant_result else NOT_RUN_TEXT,
        _verdict(system, result, column, variant, values, baseline) if values else variant.not_run_reason,
    ]


def _verdict(
    system: ReferenceSystem,
    result: ExperimentResult | None,
    column: MetricColumn,
    variant: SystemVariant,
    values: Sequence[float],
    baseline: tuple[str, float] | None,
) -> str:
    """Compare our figure with the best baseline, and say whether the targets for it were reached."""
    if variant.dynamic:
        return "not comparable: dynamic evaluation"
    parts = [compare_with_baseline(column.metric, values, baseline[1])] if baseline else []
    targets = [target for target in system.targets if (target.variant, target.column) == (variant.name, column.key)]
    statuses = [target_status(system, result, target).partition(",")[0] for target in targets] if result else []
    if len(set(statuses)) > 1:
        parts.append(f"**{statuses.count('reached')} of {len(statuses)} targets reached**")
    else:
        parts += [TARGET_TEXTS.get(status, status) for status in statuses[:1]]
    return "; ".join(parts)
