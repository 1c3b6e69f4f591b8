"""Read metrics from result files, and format their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triform.evaluation.statistics import summarise
from triform.experiments.reproduce.result_file import ExperimentResult
from triform.experiments.reproduce.system import MetricColumn


def find_variant_result(result: ExperimentResult, name: str) -> dict[str, Any] | None:
    """Return the entry of a variant in a result, or None if it was not run."""
    return next((entry for entry in result["variants"] if entry["name"] == name), None)


def values_by_seed(variant_result: Mapping[str, Any], column: str) -> dict[int, float]:
    """Return the value of a column for each seed for which it was measured."""
    eval_set, _, metric = column.rpartition(".")
    return {
        run["seed"]: run["scores"][eval_set][metric]
        for run in variant_result["runs"]
        if metric in run["scores"].get(eval_set, {})
    }


def seed_values(variant_result: Mapping[str, Any], column: str) -> list[float]:
    """Return the values of a column over all seeds. The list is empty if it was not measured."""
    return list(values_by_seed(variant_result, column).values())


def format_mean_interval(column: MetricColumn, column_values: Sequence[float]) -> str:
    """Format the mean of values, with half of its 95 % interval if there are several."""
    if not column_values:
        return "–"
    scale, unit = (100.0, " %") if column.unit == "percent" else (1.0, " s" if column.unit == "seconds" else "")
    stats = summarise(column_values)
    mean_text = f"{scale * stats.mean:,.{column.decimals}f}"
    interval_text = f" ± {scale * (stats.high - stats.mean):,.{column.decimals}f}" if len(column_values) > 1 else ""
    return f"{mean_text}{interval_text}{unit}"
