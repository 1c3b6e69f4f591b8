"""Compare runs with each other, or read the result of a study, with the statistics of `triform compare`.

Runs of one variant that differ only in their seeds are one row. Variants are compared in pairs over the seeds that
both have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from triform.config.settings import DEFAULTS, Settings, flatten_config, format_setting
from triform.errors import CheckpointError, TriformError
from triform.evaluation.statistics import ALPHA, PairedDifference, summarise
from triform.experiments.pairing import VariantPair, compare_pairs, pair_over_seeds
from triform.experiments.study.plan import (
    PER_TOKEN_METRICS,
    VALIDATION_SET,
    validation_source,
    vocabulary_settings,
)
from triform.formatting import METRICS, format_mean, metric_label, metric_title
from triform.io.files import read_regular
from triform.io.run_config import read_run_config
from triform.io.run_layout import METRICS_FILE
from triform.reporting.charts import BandPoint, Point, smooth
from triform.reporting.mean_curves import mean_with_band
from triform.reporting.run_history import RunHistory, build_history
from triform.serving.endpoints import ApiError
from triform.serving.metrics_tail import MetricsTail
from triform.serving.run_list import RunSummary

MAX_COMPARED_RUNS = 100
PLAN_FILE, STUDY_FILE = "plan.json", "study.json"  # in the folder of a study
MAX_STUDY_BYTES = 16 << 20


class VariantRow(msgspec.Struct, kw_only=True):
    """The metric of a variant on one set, over its seeds. `text` is the mean with ± half of its 95 % interval."""

    eval_set: str
    name: str
    runs: list[str]
    n: int
    text: str
    mean: float | None
    deviation: float | None
    low: float | None
    high: float | None
    parameters: int | None
    seconds: float | None


class PairRow(msgspec.Struct, kw_only=True):
    """The difference of two variants, second minus first, and the verdict in words."""

    eval_set: str
    first: str
    second: str
    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    corrected_p: float | None
    is_different: bool
    verdict: str


class Series(msgspec.Struct, kw_only=True):
    """The curve of a variant: the mean over its runs, and a band of one standard deviation."""

    name: str
    points: list[Point]
    band: list[BandPoint]


class Curves(msgspec.Struct, kw_only=True):
    """The curves of all variants in one chart."""

    title: str
    metric: str
    series: list[Series]


class SettingRow(msgspec.Struct, kw_only=True):
    """A setting in which the variants differ, with the value of each variant."""

    name: str
    values: list[str]


class RunComparison(msgspec.Struct, kw_only=True):
    """Variants with their metrics, curves and verdicts."""

    metric: str
    metric_title: str
    variants: list[VariantRow]
    pairs: list[PairRow]
    curves: list[Curves]
    settings: list[SettingRow]
    notes: list[str]
    method: list[str]


@dataclass(kw_only=True)
class Variant:
    """Runs that differ only in their seeds."""

    name: str
    settings: Settings
    runs: dict[int, RunSummary] = field(default_factory=dict)  # by seed
    histories: list[RunHistory] = field(default_factory=list)

    def values(self, metric: str) -> dict[int, float]:
        """Return the metric of each run that has it, by seed."""
        return {
            seed: run.metric.value
            for seed, run in self.runs.items()
            if run.metric is not None and run.metric.name == metric
        }


def compare_runs(runs: Sequence[tuple[RunSummary, Path]]) -> RunComparison:
    """Compare runs by their best validation metrics.

    Raises:
        ApiError: There are no runs, or too many.
    """
    if not runs:
        raise ApiError(400, "choose at least one run, or a study", param="run")
    if len(runs) > MAX_COMPARED_RUNS:
        raise ApiError(400, f"at most {MAX_COMPARED_RUNS} runs can be compared, not {len(runs)}", param="run")
    notes: list[str] = []
    variants = group_variants(runs, notes)
    metrics = [run.metric.name for variant in variants for run in variant.runs.values() if run.metric is not None]
    metric = metrics[0] if metrics else "loss"
    if others := sorted({metric_label(name) for name in metrics} - {metric_label(metric)}):
        notes.append(f"the runs have different metrics; those with {', '.join(others)} are not in the table")
    notes += [
        f"{run.id} is still training, so its metric is the best so far"
        for variant in variants
        for run in variant.runs.values()
        if run.state == "training"
    ]
    return RunComparison(
        metric=metric,
        metric_title=metric_title(metric),
        variants=[_summarise_variant(variant, metric) for variant in variants],
        pairs=_compare_variants(variants, metric, notes),
        curves=_mean_curves(variants, metric),
        settings=_differing_settings(variants),
        notes=list(dict.fromkeys(notes)),
        method=[
            "± is half of a 95 % interval (Student's t over seeds).",
            "Runs are compared by their best validation metric.",
            "Runs with the same seed are paired, and the p-values of all pairs are corrected by Holm's method.",
        ],
    )


def group_variants(runs: Sequence[tuple[RunSummary, Path]], notes: list[str]) -> list[Variant]:
    """Group runs into variants: those of one folder of seeds, and others whose settings differ only in the seed."""
    variants: list[Variant] = []
    groups: dict[str, Variant] = {}
    for run, folder in runs:
        try:
            settings = flatten_config(read_run_config(folder, verify=False))
        except TriformError as error:
            notes.append(f"{run.id} is left out: {error}")
            continue
        seed = int(str(settings.pop("seed")))
        variant = groups.get(run.group) if run.group else None
        if variant is None and not run.group:
            candidates = (variant for variant in variants if variant.settings == settings)
            variant = next((variant for variant in candidates if seed not in variant.runs), None)
        if variant is None:
            variant = Variant(name=run.group or run.id, settings=settings)
            variants.append(variant)
            if run.group:
                groups[run.group] = variant
        elif not run.group:
            variant.name += f", {run.id}"
        variant.runs[seed] = run
        events = MetricsTail(path=folder / METRICS_FILE).read_history()
        variant.histories.append(build_history(run.id, events))
    return variants


def _summarise_variant(variant: Variant, metric: str) -> VariantRow:
    values = list(variant.values(metric).values())
    stats = summarise(values) if values else None
    parameters = [run.parameters for run in variant.runs.values() if run.parameters is not None]
    seconds = [run.seconds for run in variant.runs.values() if run.seconds is not None]
    return VariantRow(
        eval_set=VALIDATION_SET,
        name=variant.name,
        runs=[run.id for run in variant.runs.values()],
        n=len(values),
        text=format_mean(metric, stats.mean, stats.half_width) if stats else "–",
        mean=stats.mean if stats else None,
        deviation=stats.deviation if stats and len(values) > 1 else None,
        low=_finite_or_none(stats.low if stats else None),
        high=_finite_or_none(stats.high if stats else None),
        parameters=max(parameters, default=None),
        seconds=sum(seconds) if seconds else None,
    )


def _compare_variants(variants: Sequence[Variant], metric: str, notes: list[str]) -> list[PairRow]:
    pairs = []
    for first, second in combinations(variants, 2):
        if reason := _incomparable_reason(first, second, metric):
            notes.append(f"{first.name} and {second.name} are not compared: {reason}")
            continue
        difference = pair_over_seeds(first.values(metric), second.values(metric))
        if difference is None:
            notes.append(f"{first.name} and {second.name} are not compared: they have no seed in common")
        else:
            pairs.append(VariantPair(first.name, second.name, metric, difference))
    if metric not in METRICS:
        return []
    return [
        _pair_row(VALIDATION_SET, pair.first, pair.second, pair.difference, verdict.corrected_p, verdict.text)
        for pair, verdict in zip(pairs, compare_pairs(pairs), strict=True)
    ]


def _incomparable_reason(first: Variant, second: Variant, metric: str) -> str:
    """Return why the metrics of two variants are not the same measure, or ""."""
    if first.settings["task"] != second.settings["task"]:
        return "they have different tasks"
    if validation_source(first.settings) != validation_source(second.settings):
        return "they were not validated on the same rows"
    is_per_token = first.settings["task"] != "classify" and metric in PER_TOKEN_METRICS
    if is_per_token and vocabulary_settings(first.settings) != vocabulary_settings(second.settings):
        return f"they differ in their vocabulary, so their {metric_label(metric)} is not the same measure"
    return ""


def _pair_row(
    eval_set: str, first: str, second: str, difference: PairedDifference, corrected_p: float, verdict: str
) -> PairRow:
    return PairRow(
        eval_set=eval_set,
        first=first,
        second=second,
        n=difference.pairs,
        difference=_finite_or_none(difference.mean),
        low=_finite_or_none(difference.low),
        high=_finite_or_none(difference.high),
        p=_finite_or_none(difference.p),
        corrected_p=_finite_or_none(corrected_p),
        is_different=corrected_p <= ALPHA,
        verdict=verdict,
    )


def _mean_curves(variants: Sequence[Variant], metric: str) -> list[Curves]:
    """Return the charts: losses, the metric, and the metric on the other sets that were evaluated."""
    charts = [("Training loss, smoothed", "loss", "train", ""), ("Validation loss", "loss", "valid", "")]
    if metric != "loss":
        charts.append((f"Validation {metric_label(metric)}", metric, "valid", ""))
    sets = dict.fromkeys(name for variant in variants for run in variant.histories for name in run.monitored_sets)
    charts += [(f"{name}: {metric_label(metric)}", metric, "monitor", name) for name in sets]
    curves = []
    for title, key, kind, eval_set in charts:
        series = [_mean_series(variant, kind, key, eval_set) for variant in variants]
        if any(entry.points for entry in series):
            curves.append(Curves(title=title, metric=key, series=series))
    return curves


def _mean_series(variant: Variant, kind: str, key: str, eval_set: str) -> Series:
    curves = [points for history in variant.histories if (points := history.curve(kind, key, eval_set))]
    points, band = mean_with_band([smooth(curve) if kind == "train" else curve for curve in curves])
    return Series(name=variant.name, points=points, band=band)


def _differing_settings(variants: Sequence[Variant]) -> list[SettingRow]:
    rows = []
    for name in DEFAULTS:
        values = [variant.settings.get(name, DEFAULTS[name]) for variant in variants]
        if name != "seed" and len(set(map(repr, values))) > 1:
            rows.append(SettingRow(name=name, values=[format_setting(value) for value in values]))
    return rows


# -- studies


def compare_study(folder: Path, study: str, runs: Sequence[tuple[RunSummary, Path]]) -> RunComparison:
    """Return the result of a study with the curves of its runs. An unfinished study is compared as its runs are."""
    order = list((_read_json(folder / PLAN_FILE) or {}).get("variants", ()))
    names = {run.id: run.group.removeprefix(f"{study}/") for run, _ in runs}
    comparison = compare_runs(
        sorted(runs, key=lambda entry: order.index(name) if (name := names[entry[0].id]) in order else len(order))
    )
    for row in comparison.variants:
        row.name = row.name.removeprefix(f"{study}/")
    for chart in comparison.curves:
        for series in chart.series:
            series.name = series.name.removeprefix(f"{study}/")
    result = _read_study(folder / STUDY_FILE)
    if result is None:
        for pair in comparison.pairs:
            pair.first, pair.second = (name.removeprefix(f"{study}/") for name in (pair.first, pair.second))
        comparison.notes.append("the study is not finished, so its runs are compared by validation metrics")
        return comparison
    runs_by_variant = {row.name: row.runs for row in comparison.variants}
    comparison.metric, comparison.metric_title = result["metric"], metric_title(result["metric"])
    comparison.variants = [
        _stored_variant(entry, result["metric"], runs_by_variant) for entry in result["variants"]
    ]
    comparison.pairs = [_stored_pair(entry) for entry in result["pairs"]]
    comparison.notes, comparison.method = list(result["notes"]), list(result["method"])
    return comparison


def _read_study(path: Path) -> dict[str, Any] | None:
    result = _read_json(path) or {}
    has_lists = all(isinstance(result.get(key), list) for key in ("variants", "pairs", "notes", "method"))
    return result if has_lists and isinstance(result.get("metric"), str) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is none."""
    try:
        content = msgspec.json.decode(read_regular(path)) if path.stat().st_size <= MAX_STUDY_BYTES else None
    except (OSError, CheckpointError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _stored_variant(entry: Mapping[str, Any], metric: str, runs: Mapping[str, list[str]]) -> VariantRow:
    mean, low, high = (entry.get(key) for key in ("mean", "low", "high"))
    half_width = (high - low) / 2 if low is not None and high is not None else math.inf
    return VariantRow(
        eval_set=entry["set"],
        name=entry["variant"],
        runs=runs.get(entry["variant"], []),
        n=entry["n"],
        text="–" if mean is None else format_mean(metric, mean, half_width),
        mean=mean,
        deviation=entry.get("deviation") if entry["n"] > 1 else None,
        low=low,
        high=high,
        parameters=entry.get("parameters"),
        seconds=entry.get("seconds"),
    )


def _stored_pair(entry: Mapping[str, Any]) -> PairRow:
    return PairRow(
        eval_set=entry["set"],
        first=entry["first"],
        second=entry["second"],
        n=entry["pairs"],
        difference=entry["difference"],
        low=entry["low"],
        high=entry["high"],
        p=entry["p"],
        corrected_p=entry["corrected_p"],
        is_different=entry["corrected_p"] <= ALPHA,
        verdict=entry["verdict"],
    )


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
