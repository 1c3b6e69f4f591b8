"""Read metrics of variants and baselines from result files, and format their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproduce.result_file import ExperimentResult
from reproduce.system import MetricColumn
from triform.evaluation.statistics import summarise
from triform.formatting import metric_info


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


def baseline_values(result: ExperimentResult) -> dict[str, dict[str, float]]:
    """Return the value of each column of each baseline, by the name of the baseline and the key of the column."""
    values = {}
    for name, metrics_by_set in result["baselines"].items():
        by_key = {
            f"{eval_set}.{metric}": value
            for eval_set, metrics in metrics_by_set.items()
            for metric, value in metrics.items()
        }
        # A baseline has one translation, which counts for both ways of decoding.
        values[name] = by_key | {
            f"test {decoding}.{key[5:]}": value
            for decoding in ("greedy", "beam 5")
            for key, value in by_key.items()
            if key[:5] == "test."
        }
    return values


def best_baseline(column: MetricColumn, result: ExperimentResult) -> tuple[str, float] | None:
    """Return the name and the value of the best baseline in a column; None if no baseline has this column."""
    values = {name: by_key[column.key] for name, by_key in baseline_values(result).items() if column.key in by_key}
    if not values:
        return None
    choose = max if metric_info(column.metric).higher_is_better else min
    name = choose(values, key=lambda baseline: values[baseline])
    return name, values[name]


def format_mean_interval(column: MetricColumn, column_values: Sequence[float]) -> str:
    """Format the mean of values, with half of its 95 % interval if there are several."""
    if not column_values:
        return "–"
    scale, unit = (100.0, " %") if column.unit == "percent" else (1.0, " s" if column.unit == "seconds" else "")
    stats = summarise(column_values)
    mean_text = f"{scale * stats.mean:,.{column.decimals}f}"
    interval_text = f" ± {scale * (stats.high - stats.mean):,.{column.decimals}f}" if len(column_values) > 1 else ""
    return f"{mean_text}{interval_text}{unit}"
