"""A training run as one page: `report.html`, which opens anywhere, offline, and shows what the run did.

The page is built from the run's own files, so it can be written at any time, also while the run goes on.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import quote

from triform import __version__
from triform.errors import DataError
from triform.formatting import METRIC_LABELS, format_metric, metric_label
from triform.reporting.charts import (
    Chart,
    Curve,
    Point,
    VerticalLine,
    downsample,
    format_number,
    render_chart,
    smooth,
)
from triform.reporting.pages import (
    format_duration,
    render_html_page,
    render_notices,
    render_section,
    render_stat_card,
    render_table,
    write_page,
)

Event = Mapping[str, Any]

# What a `valid` event may hold beside the loss.
CHART_METRICS = ("accuracy", "f1", "perplexity", "bits_per_byte", "bleu", "chrf", "exact_match", "token_accuracy")
RATE_SERIES = {"lr": "Learning rate", "grad_norm": "Gradient norm", "tokens_per_s": "Tokens per second"}
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_byte"}
END_REASONS = {
    "max_steps": ("good", "Finished"),
    "patience": ("good", "Stopped early: no more progress"),
    "interrupted": ("warn", "Interrupted"),
}


@dataclass(frozen=True, kw_only=True)
class ScoreboardRow:
    """One line of the scoreboard: a task, what it reached, and where its report lies."""

    task: str
    summary: str
    metric: str
    score: float
    target: float
    seconds: float
    report: Path
    higher_is_better: bool = True

    @property
    def reached(self) -> bool:
        """Whether the score is as good as the target; NaN never is."""
        return self.score >= self.target if self.higher_is_better else self.score <= self.target


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What the files of a run folder say, with the steps that a resumed run did twice counted once."""

    name: str
    start: Event
    events: Mapping[str, Sequence[Event]]
    settings: Mapping[str, Any] | None
    n_unreadable: int

    @property
    def task(self) -> str:
        return str(self.start.get("task", "run"))

    @property
    def metric(self) -> str:
        return str(self.start.get("metric", "loss"))

    @property
    def end(self) -> Event | None:
        return self.events["end"][-1] if self.events["end"] else None

    @property
    def last_step(self) -> int:
        steps = [event.get("step") for kind in ("train", "valid", "end") for event in self.events[kind][-1:]]
        return max((int(step) for step in steps if _is_finite(step)), default=0)

    def curve(self, kind: str, key: str) -> list[Point]:
        """The finite values of `key` over the steps."""
        pairs = ((event.get("step"), event.get(key)) for event in self.events[kind])
        return sorted(
            (float(step), float(value)) for step, value in pairs if _is_finite(step) and _is_finite(value)
        )

    def best(self) -> Point | None:
        """Step and value of the best validation score so far."""
        end = self.end or {}
        if _is_finite(end.get("best_step")) and _is_finite(end.get("best")):
            return float(end["best_step"]), float(end["best"])
        if recorded := self.curve("best", "value"):
            return recorded[-1]
        points = self.curve("valid", self.metric)
        higher_is_better = bool(self.start.get("higher_is_better", self.metric not in LOWER_IS_BETTER))
        return (max if higher_is_better else min)(points, key=lambda point: point[1]) if points else None


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from its `metrics.jsonl` and `config.toml`."""
    history = read_history(folder)
    body = "".join(
        [
            _render_header(history),
            _render_stat_cards(history),
            _render_notices(history),
            _render_charts(history),
            _render_tests(history),
            _render_samples(history),
            _render_settings(history),
        ]
    )
    version = history.start.get("version", __version__)
    return write_page(
        folder / "report.html", render_html_page(f"{history.task} · {history.name}", body, f"Triform {version}")
    )


def write_scoreboard(path: Path, rows: Sequence[ScoreboardRow]) -> Path:
    """Write one page on the runs of a demo: their scores, curves and samples, with links to their reports."""
    n_reached = sum(row.reached for row in rows)
    cards = [
        render_stat_card("Targets reached", f"{n_reached} of {len(rows)}", "tasks"),
        render_stat_card("Training time", format_duration(sum(row.seconds for row in rows)), "all tasks together"),
    ]
    header = ["Task", "What it does", "Metric", "Score", "Target", "Reached", "Training time", "Report"]
    table_rows, sections = [], []
    for row in rows:
        link = quote(Path(os.path.relpath(row.report, path.parent)).as_posix())
        sections.append(_render_run_summary(row, f'<a href="{escape(link)}">Open the full report</a>'))
        tone, word = ("good", "✓ yes") if row.reached else ("warn", "✗ no")
        table_rows.append(
            f'<tr><th scope="row">{escape(row.task)}</th><td class="text">{escape(row.summary)}</td>'
            f'<td class="name">{escape(_metric_title(row.metric))}</td>'
            f'<td class="num"><b>{format_metric(row.metric, row.score)}</b></td>'
            f'<td class="num">{"≥" if row.higher_is_better else "≤"} {format_metric(row.metric, row.target)}</td>'
            f'<td><span class="pill {tone}">{word}</span></td><td class="num">{format_duration(row.seconds)}</td>'
            f'<td><a href="{escape(link)}">{escape(row.task)} report</a></td></tr>'
        )
    body = (
        '<header><p class="eyebrow">Triform</p><h1>Scoreboard</h1>'
        '<p class="lead">One Transformer in three forms, each trained from scratch.</p></header>'
        f'<dl class="tiles">{"".join(cards)}</dl>{render_table(header, table_rows, numeric={3, 4, 6})}'
    )
    return write_page(path, render_html_page("Scoreboard", body + "".join(sections), f"Triform {__version__}"))


def _render_run_summary(row: ScoreboardRow, link: str) -> str:
    """One task of the scoreboard: its curves and a few of its samples."""
    history = read_history(row.report.parent)
    curves = "".join(map(render_chart, _headline_charts(history)))
    lead = f'<p class="lead">{escape(row.summary)} · {link}</p>'
    return render_section(
        row.task.capitalize(), f'{lead}<div class="charts">{curves}</div>{_render_sample_table(history, 4)}'
    )


def read_history(folder: Path) -> RunHistory:
    """Read a run folder; a line cut short, as the last one of a living run may be, is passed over."""
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError("no metrics to report; is this the folder of a training run?", path=path) from error
    kinds = ("start", "notice", "train", "valid", "best", "resume", "sample", "test", "end")
    events: dict[str, list[Event]] = {kind: [] for kind in kinds}
    n_unreadable = 0
    for line_number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            n_unreadable += line_number < len(lines)
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in events:  # from another version, perhaps: not ours to judge
            continue
        if kind == "resume":
            _drop_events_after(events, event.get("step"))
        events[kind].append(event)
    start = events["start"][-1] if events["start"] else {}
    name = folder.resolve().name
    return RunHistory(
        name=name, start=start, events=events, settings=_read_settings(folder), n_unreadable=n_unreadable
    )


def _drop_events_after(events: dict[str, list[Event]], step: Any) -> None:
    """Forget what came after the checkpoint a run was resumed from: it is about to be done again."""
    events["end"].clear()
    events["test"].clear()
    for kind in ("train", "valid", "best", "sample"):
        if _is_finite(step):
            events[kind] = [e for e in events[kind] if not _is_finite(e.get("step")) or e["step"] <= step]


def _read_settings(folder: Path) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the report of a run is worth having without its settings
        return None


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _metric_title(metric: str) -> str:
    """A metric's name as a title; what has capitals of its own keeps them."""
    return metric_label(metric) if metric in METRIC_LABELS else metric_label(metric).capitalize()


def _format_count(value: object) -> str:
    return f"{value:,.0f}" if _is_finite(value) else "–"


def _render_header(history: RunHistory) -> str:
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


def _render_stat_cards(history: RunHistory) -> str:
    best, end, start = history.best(), history.end or {}, history.start
    speeds = [value for _, value in history.curve("train", "tokens_per_s")]
    times = [value for _, value in history.curve("train", "seconds")]
    seconds = end["seconds"] if _is_finite(end.get("seconds")) else max(times, default=None)
    max_steps, n_parameters, vocab_size = (start.get(key) for key in ("max_steps", "parameters", "vocab_size"))
    progress_bar = (
        f'<progress max="{max_steps:.0f}" value="{history.last_step}"></progress>' if _is_finite(max_steps) else ""
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
    """Warnings in one box, facts in another; what an older version recorded has no level and counts as a fact."""
    warnings: list[str] = []
    facts: list[str] = []
    for event in history.events["notice"]:
        (warnings if event.get("level") == "warning" else facts).append(str(event.get("text", "")))
    if history.n_unreadable:
        lines = "1 damaged line" if history.n_unreadable == 1 else f"{history.n_unreadable} damaged lines"
        warnings.append(f"This page leaves out {lines} of metrics.jsonl.")
    return render_notices("Warnings", warnings, warning=True) + render_notices("About this run", facts)


def _headline_charts(history: RunHistory) -> list[Chart]:
    """The loss, and the metric by which the best weights are chosen."""
    best, resume_steps = history.best(), (event.get("step") for event in history.events["resume"])
    vertical_lines = [VerticalLine(step=best[0], label="best")] if best else []
    vertical_lines += [VerticalLine(step=step, label="resumed") for step in resume_steps if _is_finite(step)]
    raw, last_step = history.curve("train", "loss"), history.last_step
    loss = [
        Curve(name="train, raw", points=downsample(raw), faint=True),
        Curve(name="train", points=downsample(smooth(raw))),
        Curve(name="valid", points=downsample(history.curve("valid", "loss")), tone="b", dots=True),
    ]
    charts = [Chart(title="Loss", curves=loss, last_step=last_step, vertical_lines=vertical_lines, metric="loss")]
    return charts if history.metric == "loss" else [*charts, _metric_chart(history, history.metric, vertical_lines)]


def _metric_chart(
    history: RunHistory, metric: str, vertical_lines: Sequence[VerticalLine] = (), *, small: bool = False
) -> Chart:
    return Chart(
        title=_metric_title(metric),
        curves=[Curve(name="valid", points=downsample(history.curve("valid", metric)), tone="b", dots=True)],
        last_step=history.last_step,
        vertical_lines=vertical_lines,
        small=small,
        allow_log_scale=metric in LOWER_IS_BETTER,
        metric=metric,
    )


def _render_charts(history: RunHistory) -> str:
    small = [_metric_chart(history, metric, small=True) for metric in CHART_METRICS if metric != history.metric]
    small = [chart for chart in small if chart.curves[0].points]
    for key, title in RATE_SERIES.items():
        curves = [Curve(name="train", points=downsample(history.curve("train", key), 200))]
        log_scale = key == "grad_norm"
        small.append(
            Chart(title=title, curves=curves, last_step=history.last_step, small=True, allow_log_scale=log_scale)
        )
    headline_html, small_html = (
        "".join(map(render_chart, charts)) for charts in (_headline_charts(history), small)
    )
    layout = "charts" if len(small) % 4 == 0 else "charts thirds"
    if not headline_html + small_html:
        return render_section("Curves", '<p class="empty">Nothing yet: they begin with the first logged step.</p>')
    return render_section(
        "Curves", f'<div class="charts">{headline_html}</div><div class="{layout}">{small_html}</div>'
    )


def _render_tests(history: RunHistory) -> str:
    results = ((str(event.get("name", "test")), event.get("scores")) for event in history.events["test"])
    tests = {name: metrics for name, metrics in results if isinstance(metrics, dict)}
    names = list(dict.fromkeys(name for metrics in tests.values() for name in metrics))
    names.sort(key=lambda name: name != history.metric)  # the headline first
    rows = []
    for test, metrics in tests.items():
        values = (format_metric(name, metrics[name]) if _is_finite(metrics.get(name)) else "–" for name in names)
        cells = "".join(f'<td class="num">{value}</td>' for value in values)
        rows.append(f'<tr><th scope="row">{escape(test)}</th>{cells}</tr>')
    header = ["Data", *map(_metric_title, names)]
    return render_section("Test scores", render_table(header, rows, numeric=range(1, len(header)))) if rows else ""


def _last_samples(history: RunHistory) -> list[Event]:
    samples = history.events["sample"]
    return [event for event in samples if event.get("step") == samples[-1].get("step")]


def _render_samples(history: RunHistory) -> str:
    samples = _last_samples(history)
    return (
        render_section(f"Samples at step {_format_count(samples[0].get('step'))}", _render_sample_table(history))
        if samples
        else ""
    )


def _render_sample_table(history: RunHistory, limit: int | None = None) -> str:
    """What the best weights made of a few texts; a long text scrolls in its cell."""
    samples = _last_samples(history)[:limit]
    keys = [key for key in ("input", "output", "expected") if any(key in event for event in samples)]
    rows = []
    for event in samples:
        missed = "expected" in event and event.get("output") != event["expected"]
        texts = (escape(str(event.get(key, ""))) or '<i class="empty">(nothing)</i>' for key in keys)
        cells = "".join(f'<td class="text" dir="auto"><div>{text}</div></td>' for text in texts)
        rows.append(f"<tr{' class=miss' if missed else ''}>{cells}</tr>")
    return render_table(map(str.capitalize, keys), rows) if rows else ""


def _render_settings(history: RunHistory) -> str:
    command = f"triform train {escape(history.task)} --config config.toml"
    instructions = f'<p>To run it again, from this folder:</p><pre class="card"><code>{command}</code></pre>'
    if history.settings is None:
        return render_section("Settings", '<p class="empty">There was no readable config.toml.</p>')
    tables = []
    for title, values in _group_settings("", history.settings):
        pairs = ((escape(key), escape(_format_setting(value))) for key, value in values)
        rows = "".join(f'<tr><th scope="row">{key}</th><td>{value}</td></tr>' for key, value in pairs)
        name = escape(title or "general")
        tables.append(f'<div class="card group"><h3>{name}</h3><table>{rows}</table></div>')
    return render_section("Settings", f'{instructions}<div class="groups">{"".join(tables)}</div>')


def _group_settings(title: str, settings: Mapping[str, Any]) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
    """The tables of a config, each with its plain values; `[model.encoder]` comes after `[model]`."""
    if values := [(key, value) for key, value in settings.items() if not isinstance(value, dict)]:
        yield title, values
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _group_settings(f"{title}.{key}" if title else key, value)


def _format_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'
