"""Write the report of a run, `report.html`: state, curves, test metrics, samples and settings on one page.

The page is built from the files in the run folder, so it can be written at any time, even during training.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from triform import __version__
from triform.config import TRAIN_SET
from triform.formatting import METRICS, format_duration, format_metric, metric_label, metric_title
from triform.io.run_layout import REPORT_FILE
from triform.reporting.baseline_report import render_comparison
from triform.reporting.charts import (
    COLOURS,
    Chart,
    Curve,
    VerticalLine,
    downsample,
    format_number,
    render_chart,
    smooth,
)
from triform.reporting.detail_report import render_details
from triform.reporting.pages import (
    render_html_page,
    render_notices,
    render_section,
    render_stat_card,
    render_table,
    write_page,
)
from triform.reporting.run_history import Event, RunHistory, is_finite, read_history

# Metrics of `valid` events that have a chart.
CHART_METRICS = ("accuracy", "f1", "perplexity", "bits_per_byte", "bleu", "chrf", "exact_match", "token_accuracy")
RATE_SERIES = {"lr": "Learning rate", "grad_norm": "Gradient norm", "tokens_per_s": "Tokens per second"}
END_REASONS = {
    "max_steps": ("good", "Finished"),
    "patience": ("good", "Stopped early: no improvement"),
    "interrupted": ("warn", "Interrupted"),
}


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from its `metrics.jsonl` and `config.toml`."""
    history = read_history(folder)
    body = "".join(
        [
            render_header(history),
            render_stat_cards(history),
            _render_notices(history),
            render_comparison(history),
            _render_charts(history),
            _render_tests(history),
            render_details(history),
            _render_samples(history),
            _render_settings(history),
        ]
    )
    version = history.start.get("version", __version__)
    return write_page(
        folder / REPORT_FILE, render_html_page(f"{history.task} · {history.name}", body, f"Triform {version}")
    )


def _format_count(value: object) -> str:
    return f"{value:,.0f}" if is_finite(value) else "–"


def render_header(history: RunHistory) -> str:
    """Return the name of a run, its state, and the size of its data."""
    tone, status = END_REASONS.get(str((history.end or {}).get("reason")), ("good", "Finished"))
    if history.end is None:
        tone, status = "live", "Running"
    unit = history.start.get("unit", "examples")
    facts = [
        f"{_format_count(history.start[key])} {name}"
        for key, name in [("train_examples", f"training {unit}"), ("valid_examples", f"validation {unit}")]
        if key in history.start
    ]
    if "time" in history.start:
        facts.insert(0, "Started " + str(history.start["time"]).replace("T", " ")[:16])
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> {escape(history.task)}</p>'
        f'<h1>{escape(history.name)} <span class="pill {tone}">{status}</span></h1>'
        f'<p class="lead">{escape(" · ".join(facts))}</p></header>'
    )


def render_stat_cards(history: RunHistory) -> str:
    """Return the best metric, the steps, the parameters, the time, the speed and the device of a run."""
    best, end, start = history.best(), history.end or {}, history.start
    speeds = [value for _, value in history.curve("train", "tokens_per_s")]
    times = [value for _, value in history.curve("train", "seconds")]
    seconds = end["seconds"] if is_finite(end.get("seconds")) else max(times, default=None)
    max_steps, n_parameters, vocab_size = (start.get(key) for key in ("max_steps", "parameters", "vocab_size"))
    progress_bar = (
        f'<progress max="{max_steps:.0f}" value="{history.last_step}"></progress>' if is_finite(max_steps) else ""
    )
    best_note = f"at step {_format_count(int(best[0]))}" if best else "not validated yet"
    cards = [
        render_stat_card(
            f"Best {metric_label(history.metric)}",
            format_metric(history.metric, best[1]) if best else "–",
            best_note,
        ),
        render_stat_card(
            "Steps",
            _format_count(history.last_step),
            f"of {_format_count(max_steps)}",
            "" if history.end else progress_bar,
        ),
        render_stat_card("Parameters", _format_count(n_parameters), f"vocabulary of {_format_count(vocab_size)}"),
        render_stat_card(
            "Time",
            format_duration(seconds) if seconds is not None else "–",
            "training" if history.end else "so far",
        ),
        render_stat_card(
            "Tokens per second", format_number(statistics.median_low(speeds)) if speeds else "–", "median"
        ),
        render_stat_card("Device", str(start.get("device", "–")), str(start.get("precision", ""))),
    ]
    return f'<dl class="tiles">{"".join(cards)}</dl>'


def _render_notices(history: RunHistory) -> str:
    """Render warnings and other notices in two boxes. A notice without a level is not a warning."""
    warnings: list[str] = []
    facts: list[str] = []
    for event in history.events["notice"]:
        (warnings if event.get("level") == "warning" else facts).append(str(event.get("text", "")))
    if history.n_unreadable:
        lines = "1 damaged line" if history.n_unreadable == 1 else f"{history.n_unreadable} damaged lines"
        warnings.append(f"This page skips {lines} of metrics.jsonl.")
    return render_notices("Warnings", warnings, warning=True) + render_notices("About this run", facts)


def headline_charts(history: RunHistory) -> list[Chart]:
    """Return the charts of the loss and of the metric that selects the best weights."""
    best, resume_steps = history.best(), (event.get("step") for event in history.events["resume"])
    vertical_lines = [VerticalLine(step=best[0], label="best")] if best else []
    vertical_lines += [VerticalLine(step=step, label="resumed") for step in resume_steps if is_finite(step)]
    raw, last_step = history.curve("train", "loss"), history.last_step
    loss = [
        Curve(name="train, raw", points=downsample(raw), faint=True),
        Curve(name="train", points=downsample(smooth(raw))),
        *evaluation_curves(history, "loss"),
    ]
    charts = [Chart(title="Loss", curves=loss, last_step=last_step, vertical_lines=vertical_lines, metric="loss")]
    return charts if history.metric == "loss" else [*charts, _metric_chart(history, history.metric, vertical_lines)]


def evaluation_curves(history: RunHistory, metric: str) -> list[Curve]:
    """The curves of a metric on the validation set and on every set that was evaluated with it."""
    names = {TRAIN_SET: "training examples"}  # the curve of the training loss is called train
    curves = {history.valid_name: history.curve("valid", metric)} | {
        names.get(name, name): history.curve("monitor", metric, name) for name in history.monitored_sets
    }
    colours = cycle(COLOURS[1:])
    return [
        Curve(name=name, points=downsample(points), tone=next(colours), dots=True)
        for name, points in curves.items()
    ]


def _metric_chart(
    history: RunHistory, metric: str, vertical_lines: Sequence[VerticalLine] = (), *, small: bool = False
) -> Chart:
    return Chart(
        title=metric_title(metric),
        curves=evaluation_curves(history, metric),
        last_step=history.last_step,
        vertical_lines=vertical_lines,
        small=small,
        allow_log_scale=metric in METRICS and not METRICS[metric].higher_is_better,
        metric=metric,
    )


def _render_charts(history: RunHistory) -> str:
    small = [_metric_chart(history, metric, small=True) for metric in CHART_METRICS if metric != history.metric]
    small = [chart for chart in small if any(curve.points for curve in chart.curves)]
    for key, title in RATE_SERIES.items():
        curves = [Curve(name="train", points=downsample(history.curve("train", key), 200))]
        log_scale = key == "grad_norm"
        small.append(
            Chart(title=title, curves=curves, last_step=history.last_step, small=True, allow_log_scale=log_scale)
        )
    headline_html, small_html = ("".join(map(render_chart, charts)) for charts in (headline_charts(history), small))
    layout = "charts" if len(small) % 4 == 0 else "charts thirds"
    if not headline_html + small_html:
        return render_section("Curves", '<p class="empty">There are no curves before the first logged step.</p>')
    return render_section(
        "Curves", f'<div class="charts">{headline_html}</div><div class="{layout}">{small_html}</div>'
    )


def _render_tests(history: RunHistory) -> str:
    results = ((str(event.get("name", "test")), event.get("scores")) for event in history.events["test"])
    tests = {name: metrics for name, metrics in results if isinstance(metrics, dict)}
    names = list(dict.fromkeys(name for metrics in tests.values() for name in metrics))
    names.sort(key=lambda name: name != history.metric)  # the main metric first
    rows = []
    for test, metrics in tests.items():
        values = (format_metric(name, metrics[name]) if is_finite(metrics.get(name)) else "–" for name in names)
        cells = "".join(f'<td class="num">{value}</td>' for value in values)
        rows.append(f'<tr><th scope="row">{escape(test)}</th>{cells}</tr>')
    header = ["Data", *map(metric_title, names)]
    return render_section("Test metrics", render_table(header, rows, numeric=range(1, len(header)))) if rows else ""


def _last_samples(history: RunHistory) -> list[Event]:
    samples = history.events["sample"]
    return [event for event in samples if event.get("step") == samples[-1].get("step")]


def _render_samples(history: RunHistory) -> str:
    samples = _last_samples(history)
    return (
        render_section(f"Samples at step {_format_count(samples[0].get('step'))}", render_sample_table(history))
        if samples
        else ""
    )


def render_sample_table(history: RunHistory, limit: int | None = None) -> str:
    """Return a table of sample inputs and outputs of the best weights. A long text scrolls in its cell."""
    samples = _last_samples(history)[:limit]
    keys = [key for key in ("input", "output", "expected") if any(key in event for event in samples)]
    rows = []
    for event in samples:
        missed = "expected" in event and event.get("output") != event["expected"]
        texts = (escape(str(event.get(key, ""))) or '<i class="empty">(empty)</i>' for key in keys)
        cells = "".join(f'<td class="text" dir="auto"><div>{text}</div></td>' for text in texts)
        rows.append(f"<tr{' class=miss' if missed else ''}>{cells}</tr>")
    return render_table(map(str.capitalize, keys), rows) if rows else ""


def _render_settings(history: RunHistory) -> str:
    command = f"triform train {escape(history.task)} --config config.toml"
    instructions = (
        f'<p>To repeat this run, use this command in its folder:</p><pre class="card"><code>{command}</code></pre>'
    )
    if history.settings is None:
        return render_section("Settings", '<p class="empty">config.toml is missing or cannot be read.</p>')
    tables = []
    for title, values in _group_settings("", history.settings):
        pairs = ((escape(key), escape(_format_setting(value))) for key, value in values)
        rows = "".join(f'<tr><th scope="row">{key}</th><td>{value}</td></tr>' for key, value in pairs)
        name = escape(title or "general")
        tables.append(f'<div class="card group"><h3>{name}</h3><table>{rows}</table></div>')
    return render_section("Settings", f'{instructions}<div class="groups">{"".join(tables)}</div>')


def _group_settings(title: str, settings: Mapping[str, Any]) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
    """Yield the tables of a configuration with their values. Nested tables follow their parent."""
    if values := [(key, value) for key, value in settings.items() if not isinstance(value, dict)]:
        yield title, values
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _group_settings(f"{title}.{key}" if title else key, value)


def _format_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'
