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
from triform.charts import Chart, Curve, Mark, Point, draw, show, smooth, thin
from triform.errors import DataError
from triform.formatting import LABELS, format_metric, metric_label
from triform.pages import duration, notices, page, section, table, tile, write_page

Event = Mapping[str, Any]

# What a `valid` event may hold beside the loss.
SCORES = ("accuracy", "f1", "perplexity", "bits_per_byte", "bleu", "chrf", "exact_match", "token_accuracy")
PACE = {"lr": "Learning rate", "grad_norm": "Gradient norm", "tokens_per_s": "Tokens per second"}
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_byte"}
ENDINGS = {
    "max_steps": ("good", "Finished"),
    "patience": ("good", "Stopped early: no more progress"),
    "interrupted": ("warn", "Interrupted"),
}


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
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
class History:
    """What the files of a run folder say, with the steps that a resumed run did twice counted once."""

    name: str
    start: Event
    events: Mapping[str, Sequence[Event]]
    settings: Mapping[str, Any] | None
    unreadable: int

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
        return max((int(step) for step in steps if _finite(step)), default=0)

    def curve(self, kind: str, key: str) -> list[Point]:
        """The finite values of `key` over the steps."""
        pairs = ((event.get("step"), event.get(key)) for event in self.events[kind])
        return sorted((float(step), float(value)) for step, value in pairs if _finite(step) and _finite(value))

    def best(self) -> Point | None:
        """Step and value of the best validation score so far."""
        end = self.end or {}
        if _finite(end.get("best_step")) and _finite(end.get("best")):
            return float(end["best_step"]), float(end["best"])
        if said := self.curve("best", "value"):
            return said[-1]
        scores = self.curve("valid", self.metric)
        higher = bool(self.start.get("higher_is_better", self.metric not in LOWER_IS_BETTER))
        return (max if higher else min)(scores, key=lambda point: point[1]) if scores else None


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from its `metrics.jsonl` and `config.toml`."""
    run = read_history(folder)
    body = "".join(
        [_header(run), _tiles(run), _notices(run), _charts(run), _tests(run), _samples(run), _settings(run)]
    )
    version = run.start.get("version", __version__)
    return write_page(folder / "report.html", page(f"{run.task} · {run.name}", body, f"Triform {version}"))


def write_scoreboard(path: Path, rows: Sequence[ScoreRow]) -> Path:
    """Write one page on the runs of a demo: their scores, curves and samples, with links to their reports."""
    reached = sum(row.reached for row in rows)
    tiles = [
        tile("Targets reached", f"{reached} of {len(rows)}", "tasks"),
        tile("Training time", duration(sum(row.seconds for row in rows)), "all tasks together"),
    ]
    head = ["Task", "What it does", "Metric", "Score", "Target", "Reached", "Training time", "Report"]
    lines, sections = [], []
    for row in rows:
        link = quote(Path(os.path.relpath(row.report, path.parent)).as_posix())
        sections.append(_run_summary(row, f'<a href="{escape(link)}">Open the full report</a>'))
        tone, word = ("good", "✓ yes") if row.reached else ("warn", "✗ no")
        lines.append(
            f'<tr><th scope="row">{escape(row.task)}</th><td class="text">{escape(row.summary)}</td>'
            f'<td class="name">{escape(_label(row.metric))}</td>'
            f'<td class="num"><b>{format_metric(row.metric, row.score)}</b></td>'
            f'<td class="num">{"≥" if row.higher_is_better else "≤"} {format_metric(row.metric, row.target)}</td>'
            f'<td><span class="pill {tone}">{word}</span></td><td class="num">{duration(row.seconds)}</td>'
            f'<td><a href="{escape(link)}">{escape(row.task)} report</a></td></tr>'
        )
    body = (
        '<header><p class="eyebrow">Triform</p><h1>Scoreboard</h1>'
        '<p class="lead">One Transformer in three forms, each trained from scratch.</p></header>'
        f'<dl class="tiles">{"".join(tiles)}</dl>{table(head, lines, numeric={3, 4, 6})}'
    )
    return write_page(path, page("Scoreboard", body + "".join(sections), f"Triform {__version__}"))


def _run_summary(row: ScoreRow, link: str) -> str:
    """One task of the scoreboard: its curves and a few of its samples."""
    run = read_history(row.report.parent)
    curves = "".join(map(draw, _headline_charts(run)))
    lead = f'<p class="lead">{escape(row.summary)} · {link}</p>'
    return section(row.task.capitalize(), f'{lead}<div class="charts">{curves}</div>{_sample_table(run, 4)}')


def read_history(folder: Path) -> History:
    """Read a run folder; a line cut short, as the last one of a living run may be, is passed over."""
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise DataError("no metrics to report; is this the folder of a training run?", path=path) from error
    kinds = ("start", "notice", "train", "valid", "best", "resume", "sample", "test", "end")
    events: dict[str, list[Event]] = {kind: [] for kind in kinds}
    unreadable = 0
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            unreadable += number < len(lines)
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in events:  # from another version, perhaps: not ours to judge
            continue
        if kind == "resume":
            _rewind(events, event.get("step"))
        events[kind].append(event)
    start = events["start"][-1] if events["start"] else {}
    name = folder.resolve().name
    return History(name=name, start=start, events=events, settings=_read_settings(folder), unreadable=unreadable)


def _rewind(events: dict[str, list[Event]], step: Any) -> None:
    """Forget what came after the checkpoint a run was resumed from: it is about to be done again."""
    events["end"].clear()
    events["test"].clear()
    for kind in ("train", "valid", "best", "sample"):
        if _finite(step):
            events[kind] = [e for e in events[kind] if not _finite(e.get("step")) or e["step"] <= step]


def _read_settings(folder: Path) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the report of a run is worth having without its settings
        return None


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _label(metric: str) -> str:
    """A metric's name as a title; what has capitals of its own keeps them."""
    return metric_label(metric) if metric in LABELS else metric_label(metric).capitalize()


def _count(value: object) -> str:
    return f"{value:,.0f}" if _finite(value) else "–"


def _header(run: History) -> str:
    tone, status = ENDINGS.get(str((run.end or {}).get("reason")), ("good", "Finished"))
    if run.end is None:
        tone, status = "live", "Running"
    unit = run.start.get("unit", "examples")
    facts = [
        f"{_count(run.start[key])} {name}"
        for key, name in [("train_examples", f"training {unit}"), ("valid_examples", f"validation {unit}")]
        if key in run.start
    ]
    if "time" in run.start:
        facts.insert(0, "Started " + str(run.start["time"]).replace("T", " ")[:16])
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> {escape(run.task)}</p>'
        f'<h1>{escape(run.name)} <span class="pill {tone}">{status}</span></h1>'
        f'<p class="lead">{escape(" · ".join(facts))}</p></header>'
    )


def _tiles(run: History) -> str:
    best, end, start = run.best(), run.end or {}, run.start
    speeds = [value for _, value in run.curve("train", "tokens_per_s")]
    times = [value for _, value in run.curve("train", "seconds")]
    seconds = end["seconds"] if _finite(end.get("seconds")) else max(times, default=None)
    most, size, words = (start.get(key) for key in ("max_steps", "parameters", "vocab_size"))
    bar = f'<progress max="{most:.0f}" value="{run.last_step}"></progress>' if _finite(most) else ""
    when = f"at step {_count(int(best[0]))}" if best else "not validated yet"
    tiles = [
        tile(f"Best {metric_label(run.metric)}", format_metric(run.metric, best[1]) if best else "–", when),
        tile("Steps", _count(run.last_step), f"of {_count(most)}", "" if run.end else bar),
        tile("Parameters", _count(size), f"vocabulary of {_count(words)}"),
        tile("Time", duration(seconds) if seconds is not None else "–", "training" if run.end else "so far"),
        tile("Tokens per second", show(statistics.median_low(speeds)) if speeds else "–", "median"),
        tile("Device", str(start.get("device", "–")), str(start.get("precision", ""))),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _notices(run: History) -> str:
    """Warnings in one box, facts in another; what an older version recorded has no level and counts as a fact."""
    warnings: list[str] = []
    facts: list[str] = []
    for event in run.events["notice"]:
        (warnings if event.get("level") == "warning" else facts).append(str(event.get("text", "")))
    if run.unreadable:
        lines = "1 damaged line" if run.unreadable == 1 else f"{run.unreadable} damaged lines"
        warnings.append(f"This page leaves out {lines} of metrics.jsonl.")
    return notices("Warnings", warnings, warning=True) + notices("About this run", facts)


def _headline_charts(run: History) -> list[Chart]:
    """The loss, and the metric by which the best weights are chosen."""
    best, resumed = run.best(), (event.get("step") for event in run.events["resume"])
    marks = [Mark(step=best[0], label="best")] if best else []
    marks += [Mark(step=step, label="resumed") for step in resumed if _finite(step)]
    raw, last_step = run.curve("train", "loss"), run.last_step
    loss = [
        Curve(name="train, raw", points=thin(raw), faint=True),
        Curve(name="train", points=thin(smooth(raw))),
        Curve(name="valid", points=thin(run.curve("valid", "loss")), tone="b", dots=True),
    ]
    charts = [Chart(title="Loss", curves=loss, last_step=last_step, marks=marks, metric="loss")]
    return charts if run.metric == "loss" else [*charts, _metric_chart(run, run.metric, marks)]


def _metric_chart(run: History, metric: str, marks: Sequence[Mark] = (), *, small: bool = False) -> Chart:
    return Chart(
        title=_label(metric),
        curves=[Curve(name="valid", points=thin(run.curve("valid", metric)), tone="b", dots=True)],
        last_step=run.last_step,
        marks=marks,
        small=small,
        may_log=metric in LOWER_IS_BETTER,
        metric=metric,
    )


def _charts(run: History) -> str:
    small = [_metric_chart(run, metric, small=True) for metric in SCORES if metric != run.metric]
    small = [chart for chart in small if chart.curves[0].points]
    for key, title in PACE.items():
        curves = [Curve(name="train", points=thin(run.curve("train", key), 200))]
        log = key == "grad_norm"
        small.append(Chart(title=title, curves=curves, last_step=run.last_step, small=True, may_log=log))
    first, second = ("".join(map(draw, charts)) for charts in (_headline_charts(run), small))
    layout = "charts" if len(small) % 4 == 0 else "charts thirds"
    if not first + second:
        return section("Curves", '<p class="empty">Nothing yet: they begin with the first logged step.</p>')
    return section("Curves", f'<div class="charts">{first}</div><div class="{layout}">{second}</div>')


def _tests(run: History) -> str:
    found = ((str(event.get("name", "test")), event.get("scores")) for event in run.events["test"])
    tests = {name: scores for name, scores in found if isinstance(scores, dict)}
    names = list(dict.fromkeys(name for scores in tests.values() for name in scores))
    names.sort(key=lambda name: name != run.metric)  # the headline first
    lines = []
    for test, scores in tests.items():
        values = (format_metric(name, scores[name]) if _finite(scores.get(name)) else "–" for name in names)
        cells = "".join(f'<td class="num">{value}</td>' for value in values)
        lines.append(f'<tr><th scope="row">{escape(test)}</th>{cells}</tr>')
    head = ["Data", *map(_label, names)]
    return section("Test scores", table(head, lines, numeric=range(1, len(head)))) if lines else ""


def _last_samples(run: History) -> list[Event]:
    samples = run.events["sample"]
    return [event for event in samples if event.get("step") == samples[-1].get("step")]


def _samples(run: History) -> str:
    last = _last_samples(run)
    return section(f"Samples at step {_count(last[0].get('step'))}", _sample_table(run)) if last else ""


def _sample_table(run: History, limit: int | None = None) -> str:
    """What the best weights made of a few texts; a long text scrolls in its cell."""
    last = _last_samples(run)[:limit]
    keys = [key for key in ("input", "output", "expected") if any(key in event for event in last)]
    lines = []
    for event in last:
        missed = "expected" in event and event.get("output") != event["expected"]
        texts = (escape(str(event.get(key, ""))) or '<i class="empty">(nothing)</i>' for key in keys)
        cells = "".join(f'<td class="text" dir="auto"><div>{text}</div></td>' for text in texts)
        lines.append(f"<tr{' class=miss' if missed else ''}>{cells}</tr>")
    return table(map(str.capitalize, keys), lines) if lines else ""


def _settings(run: History) -> str:
    command = f"triform train {escape(run.task)} --config config.toml"
    again = f'<p>To run it again, from this folder:</p><pre class="card"><code>{command}</code></pre>'
    if run.settings is None:
        return section("Settings", '<p class="empty">There was no readable config.toml.</p>')
    tables = []
    for title, values in _groups("", run.settings):
        pairs = ((escape(key), escape(_plain(value))) for key, value in values)
        lines = "".join(f'<tr><th scope="row">{key}</th><td>{value}</td></tr>' for key, value in pairs)
        name = escape(title or "general")
        tables.append(f'<div class="card group"><h3>{name}</h3><table>{lines}</table></div>')
    return section("Settings", f'{again}<div class="groups">{"".join(tables)}</div>')


def _groups(title: str, settings: Mapping[str, Any]) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
    """The tables of a config, each with its plain values; `[model.encoder]` comes after `[model]`."""
    if values := [(key, value) for key, value in settings.items() if not isinstance(value, dict)]:
        yield title, values
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _groups(f"{title}.{key}" if title else key, value)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'
