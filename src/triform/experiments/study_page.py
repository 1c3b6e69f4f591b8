"""A study as one page, study.html: verdicts, scores with intervals, all curves in one picture, what each costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from triform import __version__
from triform.config.settings import DEFAULTS
from triform.errors import notice_level
from triform.evaluation.statistics import ALPHA, metric_info, summarise
from triform.experiments.plan import TRAINING_SET
from triform.experiments.results import StudyResult, VariantSummary
from triform.experiments.study_tables import (
    N_TEXT_COLUMNS,
    PAIR_HEADER,
    VARIANT_HEADER,
    TableRow,
    method_notes,
    pair_rows,
    study_title,
    variant_rows,
    verdict_lines,
)
from triform.formatting import format_mean, metric_label
from triform.reporting import pages
from triform.reporting.charts import BandPoint, Chart, Curve, Point, Scale, linear_scale, render_chart, smooth
from triform.reporting.pages import format_duration, render_section, render_stat_card, render_table
from triform.reporting.run_report import read_history

COLOUR_CLASSES = "abcdefgh"  # beyond these, the same once more, dashed
MAX_CURVE_STEPS = 200  # of a mean curve
MAX_VISIBLE_PAIRS = 10  # more of them are folded away


def write_study_page(result: StudyResult) -> Path:
    body = "".join(
        [
            _render_header(result),
            _render_verdicts(result),
            _render_metrics(result),
            _render_curves(result),
            _render_costs(result),
        ]
    )
    body += _render_settings(result) + render_section(
        "How to read it", f"<p>{escape(' '.join(method_notes(result)))}</p>"
    )
    html = pages.render_html_page(f"{result.study.name} · study", body, f"Triform {__version__}")
    return pages.write_page(result.path / "study.html", html)


def _render_header(result: StudyResult) -> str:
    n_failed = sum(bool(entry.failure) for entry in result.runs)
    status_class, status = ("warn", f"{n_failed} failed") if n_failed else ("good", "Finished")
    seconds = sum({entry.variant: entry.seconds for entry in result.summaries}.values())
    tiles = [
        render_stat_card("Variants", str(len(result.study.variants))),
        render_stat_card("Seeds", str(len(result.study.seeds)), "each"),
        render_stat_card("Runs", str(len(result.runs)), f"{n_failed} failed" if n_failed else "all came to an end"),
        render_stat_card("Time", format_duration(seconds), "training, all together"),
    ]
    warnings = [note for note in result.notes if notice_level(note) == "warning"]
    facts = [note for note in result.notes if note not in warnings]
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> study</p><h1>{escape(result.study.name)} '
        f'<span class="pill {status_class}">{status}</span></h1><p class="lead">{escape(study_title(result))}</p></header>'
        f'<dl class="tiles">{"".join(tiles)}</dl>'
        + pages.render_notices("Warnings", warnings, warning=True)
        + pages.render_notices("About this study", facts)
    )


def _render_verdicts(result: StudyResult) -> str:
    if not result.comparisons:
        return ""
    items = []
    for comparison, line in zip(result.comparisons, verdict_lines(result), strict=True):
        pair, _, verdict_text = line.partition(": ")
        badge = '<span class="pill">different</span> ' if comparison.corrected_p <= ALPHA else ""
        items.append(f"<li>{badge}<b>{escape(pair)}</b>: {escape(verdict_text)}</li>")
    pair_table = _render_table(PAIR_HEADER, pair_rows(result))
    if len(items) > MAX_VISIBLE_PAIRS:
        pair_table = f"<details><summary>All {len(items)} pairs in figures</summary>{pair_table}</details>"
    return render_section("Verdicts", f'<ul class="card said">{"".join(items)}</ul>{pair_table}')


def _render_table(head: TableRow, rows: Sequence[TableRow]) -> str:
    lines = []
    for row in rows:
        cells = "".join(f'<td class="num">{escape(cell)}</td>' for cell in row[N_TEXT_COLUMNS:])
        names = f'<th scope="row">{escape(row[0])}</th><td class="name">{escape(row[1])}</td>'
        lines.append(f"<tr>{names}{cells}</tr>")
    return render_table(head, lines, numeric=range(N_TEXT_COLUMNS, len(head)))


# -- scores and costs


@dataclass(frozen=True, kw_only=True)
class StripRow:
    """One line of a picture of values: a bar from zero, or a mean with its interval and the runs behind it."""

    name: str
    css_class: str  # classes: tone and dashes
    value_text: str
    value: float
    low: float = math.nan
    high: float = math.nan
    runs: Sequence[float] = ()


def _colour_class(index: int) -> str:
    return f"tone-{COLOUR_CLASSES[index % len(COLOUR_CLASSES)]}"


def _render_metrics(result: StudyResult) -> str:
    figures = []
    for eval_set in result.eval_sets:
        summaries = [summary for summary in result.summaries if summary.eval_set == eval_set and summary.stats]
        strip_rows = [_strip_row(result, summary) for summary in summaries]
        figures.append(
            _render_strip_figure(
                f"{eval_set}: {metric_info(result.metric).name}", "mean, 95 % interval, every seed", strip_rows
            )
        )
    variant_table = _render_table(VARIANT_HEADER, variant_rows(result))
    return render_section("Scores", f'<div class="charts">{"".join(figures)}</div>{variant_table}')


def _strip_row(result: StudyResult, summary: VariantSummary) -> StripRow:
    assert summary.stats is not None
    info = metric_info(result.metric)
    mean, deviation, low, high = (value * info.scale for value in summary.stats)
    half_width = summary.stats.half_width
    value_text = format_mean(result.metric, summary.stats.mean, half_width)
    runs = [
        run.metric_values[summary.eval_set] * info.scale
        for run in result.runs_of(summary.variant)
        if summary.eval_set in run.metric_values
    ]
    index = [variant.name for variant in result.study.variants].index(summary.variant)
    interval = {"low": low, "high": high} if math.isfinite(half_width) and deviation else {}
    return StripRow(
        name=summary.variant,
        css_class=_colour_class(index),
        value_text=value_text,
        value=mean,
        runs=runs,
        **interval,
    )


def _render_costs(result: StudyResult) -> str:
    quantities: list[tuple[str, Callable[[VariantSummary], float], Callable[[float], str]]] = [
        ("Training time, all seeds", lambda summary: summary.seconds, format_duration),
        ("Parameters", lambda summary: float(summary.parameters), lambda value: f"{value:,.0f}"),
    ]
    figures = []
    for name, get_value, format_value in quantities:
        strip_rows = [
            StripRow(
                name=summary.variant,
                css_class=_colour_class(index),
                value_text=format_value(get_value(summary)),
                value=get_value(summary),
            )
            for index, summary in enumerate(
                summary for summary in result.summaries if summary.eval_set == result.eval_sets[0]
            )
        ]
        figures.append(_render_strip_figure(name, "", strip_rows))
    return render_section("What each costs", f'<div class="charts">{"".join(figures)}</div>')


def _render_strip_figure(title: str, hint: str, strip_rows: Sequence[StripRow]) -> str:
    values = [value for row in strip_rows for value in (*row.runs, row.low, row.high) if math.isfinite(value)]
    scale = linear_scale(min(values), max(values), count=4) if values else None
    longest = max((row.value for row in strip_rows), default=0.0) or 1.0
    elements = []
    for row in strip_rows:
        graphic = _render_interval(row, scale) if scale else _render_bar(row.value / longest)
        description = escape(f"{row.name}: {row.value_text}")
        elements.append(
            f'<b>{escape(row.name)}</b><svg class="{row.css_class}" role="img"><title>{description}</title>{graphic}</svg>'
            f'<span class="value">{escape(row.value_text)}</span>'
        )
    axis = _render_axis(scale) if scale else ""
    hint_html = f' <small class="hint">{escape(hint)}</small>' if hint else ""
    return (
        f'<figure class="card chart short"><figcaption><h3>{escape(title)}{hint_html}</h3></figcaption>'
        f'<div class="strips">{"".join(elements)}{axis}</div></figure>\n'
    )


def _render_axis(scale: Scale) -> str:
    ticks = "".join(
        f'<text class="tick" x="{100 * scale.position(value):.2f}%" y="14" text-anchor="middle">{label}</text>'
        for value, label in scale.ticks
    )
    return f"<i></i><svg>{ticks}</svg><i></i>"


def _render_bar(fraction: float) -> str:
    return f'<rect class="bar" x="0" y="8" width="{100 * fraction:.2f}%" height="14" rx="3"/>'


def _render_interval(row: StripRow, scale: Scale) -> str:
    elements = ['<line class="grid" x1="0" x2="100%" y1="15" y2="15"/>']
    if math.isfinite(row.low):
        left, right = 100 * scale.position(row.low), 100 * scale.position(row.high)
        elements.append(
            f'<rect class="reach" x="{left:.2f}%" y="7" width="{right - left:.2f}%" height="16" rx="3"/>'
        )
    elements += [
        f'<circle class="run" cx="{100 * scale.position(value):.2f}%" cy="15" r="2.5"/>' for value in row.runs
    ]
    mean_position = f"{100 * scale.position(row.value):.2f}%"
    return "".join([*elements, f'<line class="mean" x1="{mean_position}" x2="{mean_position}" y1="5" y2="25"/>'])


# -- curves


def mean_with_band(runs: Sequence[Sequence[Point]]) -> tuple[list[Point], list[BandPoint]]:
    """The mean over runs at each step that most of them have, and one standard deviation to both sides.

    A band ends at the farthest run, so that it never leaves what is possible.
    """
    values_by_step: dict[float, list[float]] = defaultdict(list)
    for points in runs:
        for step, value in points:
            values_by_step[step].append(value)
    steps = sorted(step for step, values in values_by_step.items() if 2 * len(values) > len(runs))
    stride = math.ceil(len(steps) / MAX_CURVE_STEPS)
    steps = sorted({*steps[:: stride or 1], *steps[-1:]})
    mean, band = [], []
    for step in steps:
        step_mean, deviation, *_ = summarise(values_by_step[step])
        mean.append((step, step_mean))
        band.append(
            (
                step,
                max(min(values_by_step[step]), step_mean - deviation),
                min(max(values_by_step[step]), step_mean + deviation),
            )
        )
    return mean, band if len(runs) > 1 else []


def _render_curves(result: StudyResult) -> str:
    histories = {
        variant.name: [
            read_history(run_result.folder) for run_result in result.runs_of(variant.name) if not run_result.failure
        ]
        for variant in result.study.variants
    }
    metric = metric_label(result.metric)
    series = [("Training loss, smoothed", "train", "loss"), ("Validation loss", "valid", "loss")]
    if result.eval_sets != (TRAINING_SET,) and result.metric != "loss":
        series.append((f"Validation {metric}", "valid", result.metric))
    last_step = max((run.last_step for runs in histories.values() for run in runs), default=1)
    charts = []
    for name, kind, key in series:
        curves = []
        for index, (variant, runs) in enumerate(histories.items()):
            run_curves = [points for run in runs if (points := run.curve(kind, key))]
            mean, band = mean_with_band([smooth(points) if kind == "train" else points for points in run_curves])
            curve = Curve(
                name=variant,
                points=mean,
                band=band,
                tone=COLOUR_CLASSES[index % len(COLOUR_CLASSES)],
                dots=kind == "valid" and len(mean) < 12,
                dashed=index >= len(COLOUR_CLASSES),
            )
            curves.append(curve)
        drawable = [curve for curve in curves if curve.points]
        chart = Chart(title=name, curves=drawable, last_step=last_step, metric=key)
        charts.append(render_chart(chart) if chart.curves else "")
    lead = '<p class="lead">Lines are means over seeds, bands one standard deviation to both sides.</p>'
    layout = "charts crowded" if len(histories) > len(COLOUR_CLASSES) // 2 else "charts"
    return render_section("Curves", f'{lead}<div class="{layout}">{"".join(charts)}</div>')


def _render_settings(result: StudyResult) -> str:
    """Where the variants differ; what they share is in every run's own report."""
    variants = result.study.variants
    names = sorted({name for variant in variants for name in variant.settings})
    rows = []
    for name in names:
        values = [variant.settings.get(name, DEFAULTS[name]) for variant in variants]
        if len(set(map(repr, values))) > 1:
            cells = "".join(f'<td class="num">{escape(str(value))}</td>' for value in values)
            rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    if not rows:
        return render_section("Settings", '<p class="empty">The variants do not differ in any setting.</p>')
    head = ["Setting", *(variant.name for variant in variants)]
    return render_section("Where they differ", render_table(head, rows, numeric=range(1, len(head))))
