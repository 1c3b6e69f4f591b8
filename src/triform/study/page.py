"""A study as one page, study.html: verdicts, scores with intervals, all curves in one picture, what each costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from triform import __version__, pages
from triform.charts import Chart, Curve, Point, Reach, Scale, draw, linear_scale, smooth
from triform.errors import notice_level
from triform.formatting import format_mean, metric_label
from triform.pages import duration, section, table, tile
from triform.report import read_history
from triform.settings import DEFAULTS
from triform.stats import LEVEL, measure, spread
from triform.study.plan import TRAINING
from triform.study.results import Outcome, Summary
from triform.study.tables import (
    PAIR_HEAD,
    TEXT_COLUMNS,
    VARIANT_HEAD,
    Row,
    method,
    pair_rows,
    title,
    variant_rows,
    verdicts,
)

TONES = "abcdefgh"  # beyond these, the same once more, dashed
MOST_STEPS = 200  # of a mean curve
MOST_PAIRS = 10  # more of them are folded away


def write_page(outcome: Outcome) -> Path:
    body = "".join([_header(outcome), _verdicts(outcome), _scores(outcome), _curves(outcome), _costs(outcome)])
    body += _settings(outcome) + section("How to read it", f"<p>{escape(' '.join(method(outcome)))}</p>")
    whole = pages.page(f"{outcome.study.name} · study", body, f"Triform {__version__}")
    return pages.write_page(outcome.path / "study.html", whole)


def _header(outcome: Outcome) -> str:
    failed = sum(bool(each.failure) for each in outcome.results)
    tone, status = ("warn", f"{failed} failed") if failed else ("good", "Finished")
    seconds = sum({each.variant: each.seconds for each in outcome.summaries}.values())
    tiles = [
        tile("Variants", str(len(outcome.study.variants))),
        tile("Seeds", str(len(outcome.study.seeds)), "each"),
        tile("Runs", str(len(outcome.results)), f"{failed} failed" if failed else "all came to an end"),
        tile("Time", duration(seconds), "training, all together"),
    ]
    warnings = [note for note in outcome.notes if notice_level(note) == "warning"]
    facts = [note for note in outcome.notes if note not in warnings]
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> study</p><h1>{escape(outcome.study.name)} '
        f'<span class="pill {tone}">{status}</span></h1><p class="lead">{escape(title(outcome))}</p></header>'
        f'<dl class="tiles">{"".join(tiles)}</dl>'
        + pages.notices("Warnings", warnings, warning=True)
        + pages.notices("About this study", facts)
    )


def _verdicts(outcome: Outcome) -> str:
    if not outcome.comparisons:
        return ""
    said = []
    for each, line in zip(outcome.comparisons, verdicts(outcome), strict=True):
        pair, _, words = line.partition(": ")
        pill = '<span class="pill">different</span> ' if each.corrected <= LEVEL else ""
        said.append(f"<li>{pill}<b>{escape(pair)}</b>: {escape(words)}</li>")
    listed = _listed(PAIR_HEAD, pair_rows(outcome))
    if len(said) > MOST_PAIRS:
        listed = f"<details><summary>All {len(said)} pairs in figures</summary>{listed}</details>"
    return section("Verdicts", f'<ul class="card said">{"".join(said)}</ul>{listed}')


def _listed(head: Row, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        cells = "".join(f'<td class="num">{escape(cell)}</td>' for cell in row[TEXT_COLUMNS:])
        names = f'<th scope="row">{escape(row[0])}</th><td class="name">{escape(row[1])}</td>'
        lines.append(f"<tr>{names}{cells}</tr>")
    return table(head, lines, numeric=range(TEXT_COLUMNS, len(head)))


# -- scores and costs


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One line of a picture of values: a bar from zero, or a mean with its interval and the runs behind it."""

    name: str
    look: str  # classes: tone and dashes
    shown: str
    value: float
    low: float = math.nan
    high: float = math.nan
    runs: Sequence[float] = ()


def _look(number: int) -> str:
    return f"tone-{TONES[number % len(TONES)]}"


def _scores(outcome: Outcome) -> str:
    figures = []
    for name in outcome.sets:
        summaries = [each for each in outcome.summaries if each.set == name and each.spread]
        strips = [_strip(outcome, each) for each in summaries]
        figures.append(
            _figure(f"{name}: {measure(outcome.metric).name}", "mean, 95 % interval, every seed", strips)
        )
    listed = _listed(VARIANT_HEAD, variant_rows(outcome))
    return section("Scores", f'<div class="charts">{"".join(figures)}</div>{listed}')


def _strip(outcome: Outcome, summary: Summary) -> Strip:
    assert summary.spread is not None
    how = measure(outcome.metric)
    mean, deviation, low, high = (value * how.times for value in summary.spread)
    half_width = summary.spread.half_width
    shown = format_mean(outcome.metric, summary.spread.mean, half_width)
    runs = [
        each.scores[summary.set] * how.times for each in outcome.of(summary.variant) if summary.set in each.scores
    ]
    number = [variant.name for variant in outcome.study.variants].index(summary.variant)
    ends = {"low": low, "high": high} if math.isfinite(half_width) and deviation else {}
    return Strip(name=summary.variant, look=_look(number), shown=shown, value=mean, runs=runs, **ends)


def _costs(outcome: Outcome) -> str:
    ways: list[tuple[str, Callable[[Summary], float], Callable[[float], str]]] = [
        ("Training time, all seeds", lambda each: each.seconds, duration),
        ("Parameters", lambda each: float(each.parameters), lambda value: f"{value:,.0f}"),
    ]
    figures = []
    for name, take, show in ways:
        strips = [
            Strip(name=each.variant, look=_look(number), shown=show(take(each)), value=take(each))
            for number, each in enumerate(each for each in outcome.summaries if each.set == outcome.sets[0])
        ]
        figures.append(_figure(name, "", strips))
    return section("What each costs", f'<div class="charts">{"".join(figures)}</div>')


def _figure(name: str, hint: str, strips: Sequence[Strip]) -> str:
    values = [value for each in strips for value in (*each.runs, each.low, each.high) if math.isfinite(value)]
    scale = linear_scale(min(values), max(values), count=4) if values else None
    longest = max((each.value for each in strips), default=0.0) or 1.0
    rows = []
    for each in strips:
        drawn = _interval(each, scale) if scale else _bar(each.value / longest)
        said = escape(f"{each.name}: {each.shown}")
        rows.append(
            f'<b>{escape(each.name)}</b><svg class="{each.look}" role="img"><title>{said}</title>{drawn}</svg>'
            f'<span class="value">{escape(each.shown)}</span>'
        )
    axis = _axis(scale) if scale else ""
    small = f' <small class="hint">{escape(hint)}</small>' if hint else ""
    return (
        f'<figure class="card chart short"><figcaption><h3>{escape(name)}{small}</h3></figcaption>'
        f'<div class="strips">{"".join(rows)}{axis}</div></figure>\n'
    )


def _axis(scale: Scale) -> str:
    ticks = "".join(
        f'<text class="tick" x="{100 * scale.at(value):.2f}%" y="14" text-anchor="middle">{label}</text>'
        for value, label in scale.ticks
    )
    return f"<i></i><svg>{ticks}</svg><i></i>"


def _bar(share: float) -> str:
    return f'<rect class="bar" x="0" y="8" width="{100 * share:.2f}%" height="14" rx="3"/>'


def _interval(strip: Strip, scale: Scale) -> str:
    parts = ['<line class="grid" x1="0" x2="100%" y1="15" y2="15"/>']
    if math.isfinite(strip.low):
        left, right = 100 * scale.at(strip.low), 100 * scale.at(strip.high)
        parts.append(f'<rect class="reach" x="{left:.2f}%" y="7" width="{right - left:.2f}%" height="16" rx="3"/>')
    parts += [f'<circle class="run" cx="{100 * scale.at(value):.2f}%" cy="15" r="2.5"/>' for value in strip.runs]
    at = f"{100 * scale.at(strip.value):.2f}%"
    return "".join([*parts, f'<line class="mean" x1="{at}" x2="{at}" y1="5" y2="25"/>'])


# -- curves


def banded(runs: Sequence[Sequence[Point]]) -> tuple[list[Point], list[Reach]]:
    """The mean over runs at each step that most of them have, and one standard deviation to both sides.

    A band ends at the farthest run, so that it never leaves what is possible.
    """
    at: dict[float, list[float]] = defaultdict(list)
    for points in runs:
        for step, value in points:
            at[step].append(value)
    steps = sorted(step for step, values in at.items() if 2 * len(values) > len(runs))
    every = math.ceil(len(steps) / MOST_STEPS)
    steps = sorted({*steps[:: every or 1], *steps[-1:]})
    mean, band = [], []
    for step in steps:
        middle, deviation, *_ = spread(at[step])
        mean.append((step, middle))
        band.append((step, max(min(at[step]), middle - deviation), min(max(at[step]), middle + deviation)))
    return mean, band if len(runs) > 1 else []


def _curves(outcome: Outcome) -> str:
    histories = {
        variant.name: [read_history(each.folder) for each in outcome.of(variant.name) if not each.failure]
        for variant in outcome.study.variants
    }
    metric = metric_label(outcome.metric)
    wanted = [("Training loss, smoothed", "train", "loss"), ("Validation loss", "valid", "loss")]
    if outcome.sets != (TRAINING,) and outcome.metric != "loss":
        wanted.append((f"Validation {metric}", "valid", outcome.metric))
    last = max((run.last_step for runs in histories.values() for run in runs), default=1)
    drawn = []
    for name, kind, key in wanted:
        curves = []
        for number, (variant, runs) in enumerate(histories.items()):
            found = [points for run in runs if (points := run.curve(kind, key))]
            mean, band = banded([smooth(points) if kind == "train" else points for points in found])
            curve = Curve(
                name=variant,
                points=mean,
                band=band,
                tone=TONES[number % len(TONES)],
                dots=kind == "valid" and len(mean) < 12,
                dashed=number >= len(TONES),
            )
            curves.append(curve)
        drawable = [curve for curve in curves if curve.points]
        chart = Chart(title=name, curves=drawable, last_step=last, metric=key)
        drawn.append(draw(chart) if chart.curves else "")
    told = '<p class="lead">Lines are means over seeds, bands one standard deviation to both sides.</p>'
    layout = "charts crowded" if len(histories) > len(TONES) // 2 else "charts"
    return section("Curves", f'{told}<div class="{layout}">{"".join(drawn)}</div>')


def _settings(outcome: Outcome) -> str:
    """Where the variants differ; what they share is in every run's own report."""
    variants = outcome.study.variants
    names = sorted({name for variant in variants for name in variant.asked})
    rows = []
    for name in names:
        values = [variant.asked.get(name, DEFAULTS[name]) for variant in variants]
        if len(set(map(repr, values))) > 1:
            cells = "".join(f'<td class="num">{escape(str(value))}</td>' for value in values)
            rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    if not rows:
        return section("Settings", '<p class="empty">The variants do not differ in any setting.</p>')
    head = ["Setting", *(variant.name for variant in variants)]
    return section("Where they differ", table(head, rows, numeric=range(1, len(head))))
