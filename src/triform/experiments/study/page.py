"""Write the page of a study, study.html: verdicts, metrics with intervals, curves, costs and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from triform import __version__
from triform.errors import notice_level
from triform.evaluation.statistics import ALPHA
from triform.experiments.study.plan import TRAINING_SET
from triform.experiments.study.tables import (
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
from triform.formatting import format_duration, format_mean, metric_info, metric_label
from triform.html.notebook import render_output
from triform.reporting import pages
from triform.reporting.charts import COLOURS
from triform.reporting.interval_plot import Strip, render_interval_plot
from triform.reporting.mean_curves import colour_class, render_mean_chart
from triform.reporting.pages import render_section, render_stat_card, render_table
from triform.reporting.run_history import read_history

if TYPE_CHECKING:
    from triform.experiments.study.results import StudyResult, VariantSummary

MAX_VISIBLE_PAIRS = 10  # a longer table is collapsed


def write_study_page(result: StudyResult) -> Path:
    """Write study.html into the folder of the study."""
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
        "How the figures were computed", f"<p>{escape(' '.join(method_notes(result)))}</p>"
    )
    html = pages.render_html_page(f"{result.study.name} · study", body, f"Triform {__version__}")
    return pages.write_page(result.path / "study.html", html)


def render_study_card(result: StudyResult) -> str:
    """Return the verdicts and the metrics of a study for a notebook. The page has the curves too."""
    return render_output(_render_header(result) + _render_verdicts(result) + _render_metrics(result))


def _render_header(result: StudyResult) -> str:
    n_failed = sum(bool(entry.failure) for entry in result.runs)
    status_class, status = ("warn", f"{n_failed} failed") if n_failed else ("good", "Finished")
    seconds = sum({entry.variant: entry.seconds for entry in result.summaries}.values())
    tiles = [
        render_stat_card("Variants", str(len(result.study.variants))),
        render_stat_card("Seeds", str(len(result.study.seeds)), "each"),
        render_stat_card("Runs", str(len(result.runs)), f"{n_failed} failed" if n_failed else "all finished"),
        render_stat_card("Training time", format_duration(seconds), "for all runs"),
    ]
    warnings = [note for note in result.notes if notice_level(note) == "warning"]
    facts = [note for note in result.notes if note not in warnings]
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> study</p><h1>{escape(result.study.name)} '
        f'<span class="pill {status_class}">{status}</span></h1>'
        f'<p class="lead">{escape(study_title(result))}</p></header>'
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
        pair_table = f"<details><summary>Figures of all {len(items)} pairs</summary>{pair_table}</details>"
    return render_section("Verdicts", f'<ul class="card said">{"".join(items)}</ul>{pair_table}')


def _render_table(head: TableRow, rows: Sequence[TableRow]) -> str:
    lines = []
    for row in rows:
        cells = "".join(f'<td class="num">{escape(cell)}</td>' for cell in row[N_TEXT_COLUMNS:])
        names = f'<th scope="row">{escape(row[0])}</th><td class="name">{escape(row[1])}</td>'
        lines.append(f"<tr>{names}{cells}</tr>")
    return render_table(head, lines, numeric=range(N_TEXT_COLUMNS, len(head)))


# -- metrics and costs


def _render_metrics(result: StudyResult) -> str:
    figures = []
    for eval_set in result.eval_sets:
        summaries = [summary for summary in result.summaries if summary.eval_set == eval_set and summary.stats]
        strips = [_build_strip(result, summary) for summary in summaries]
        figures.append(
            render_interval_plot(
                f"{eval_set}: {metric_label(result.metric)}", "mean, 95 % interval and each seed", strips
            )
        )
    variant_table = _render_table(VARIANT_HEADER, variant_rows(result))
    return render_section("Metrics", f'<div class="charts">{"".join(figures)}</div>{variant_table}')


def _build_strip(result: StudyResult, summary: VariantSummary) -> Strip:
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
    return Strip(
        name=summary.variant,
        css_class=colour_class(index),
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
        strips = [
            Strip(
                name=summary.variant,
                css_class=colour_class(index),
                value_text=format_value(get_value(summary)),
                value=get_value(summary),
            )
            for index, summary in enumerate(
                summary for summary in result.summaries if summary.eval_set == result.eval_sets[0]
            )
        ]
        figures.append(render_interval_plot(name, "", strips))
    return render_section("Costs", f'<div class="charts">{"".join(figures)}</div>')


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
    charts = [render_mean_chart(name, histories, event, key) for name, event, key in series]
    monitored = dict.fromkeys(name for runs in histories.values() for run in runs for name in run.monitored_sets)
    charts += [
        render_mean_chart(f"{name}: {metric}", histories, "monitor", result.metric, name) for name in monitored
    ]
    lead = '<p class="lead">Lines are means over seeds. Bands show one standard deviation on both sides.</p>'
    layout = "charts crowded" if len(histories) > len(COLOURS) // 2 else "charts"
    return render_section("Curves", f'{lead}<div class="{layout}">{"".join(charts)}</div>')


def _render_settings(result: StudyResult) -> str:
    """Return a table of the settings in which the variants differ. The report of each run has all settings."""
    variants = result.study.variants
    names = sorted({name for variant in variants for name in variant.settings})
    rows = []
    for name in names:
        values = [variant.settings.get(name, "default") for variant in variants]
        if len(set(map(repr, values))) > 1:
            cells = "".join(f'<td class="num">{escape(str(value))}</td>' for value in values)
            rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    if not rows:
        return render_section("Settings", '<p class="empty">The variants do not differ in any setting.</p>')
    head = ["Setting", *(variant.name for variant in variants)]
    return render_section("Settings that differ", render_table(head, rows, numeric=range(1, len(head))))
