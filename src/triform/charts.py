"""Line charts as inline SVG: no library, no network, the same text size at every width.

The trick is two nested SVGs. The outer one has no viewBox: text and dots are placed in per cent and keep
their size. The inner one is stretched over it (`preserveAspectRatio="none"`) and holds only the curves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

from triform.formatting import format_metric, metric_scale, out_of_hundred

Point = tuple[float, float]  # (step, value)
Reach = tuple[float, float, float]  # (step, low, high)

MOST_POINTS = 600  # more than a screen can show; keeps the page small
MOST_DOTS = 60  # beyond this, dots would merge into a thick line
LOG_FROM = 20.0  # a curve whose largest value is this many times its smallest is drawn on a log scale


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart; `tone` picks its colour in the style sheet."""

    name: str
    points: Sequence[Point]
    tone: str = "a"
    faint: bool = False  # drawn behind the others, and does not stretch the axis
    dots: bool = False
    dashed: bool = False
    band: Sequence[Reach] = ()  # how far the runs behind a mean lie apart


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at a step that matters."""

    step: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over the same steps."""

    title: str
    curves: Sequence[Curve]
    last_step: float
    marks: Sequence[Mark] = ()
    small: bool = False
    may_log: bool = True
    metric: str = ""  # what the values are, if a metric: a fraction is then drawn in percent

    def say(self, value: float) -> str:
        """A value as text."""
        return format_metric(self.metric, value) if self.metric else show(value)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to a fraction of the axis, with the values worth a label."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` lies between the ends of the axis: 0 to 1, held inside."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def show(value: float) -> str:
    """A number as people write it: four digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def thin(points: Sequence[Point], limit: int = MOST_POINTS) -> list[Point]:
    """At most `limit` points: both ends, and the extremes of every stretch, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    inner, stretches = points[1:-1], (limit - 2) // 2
    kept = [points[0]]
    for i in range(stretches):
        part = inner[i * len(inner) // stretches : (i + 1) * len(inner) // stretches]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return [*kept, points[-1]]


def smooth(points: Sequence[Point]) -> list[Point]:
    """A running mean; its window is centred (no lag) and opens slowly (a loss falls fast at first)."""
    half = max(4, len(points) // 25)
    sums = list(accumulate((value for _, value in points), initial=0.0))
    means = []
    for i, (step, _) in enumerate(points):
        reach = min(half, i)
        first, last = i - reach, min(i + reach, len(points) - 1)
        means.append((step, (sums[last + 1] - sums[first]) / (last + 1 - first)))
    return means


def linear_scale(low: float, high: float, *, count: int = 5, snug: bool = False) -> Scale:
    """A scale whose ends and ticks are round numbers; `snug` keeps the ends where they are."""
    if high <= low:
        room = abs(high) / 2 or 1.0
        low, high = low - room, high + room
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    if not snug:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [(i * step, _tick(i * step, step, high)) for i in range(first, last + 1)]
    return Scale(low=low, high=high, ticks=ticks)


def log_scale(low: float, high: float, *, count: int = 6) -> Scale:
    """A logarithmic scale with ticks at 1, 2, 5, 10, …, or at powers of ten when it spans many."""
    low, high = low / 1.12, high * 1.12
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(ticks) > count:
        tens = [10.0**p for p in powers if low <= 10.0**p <= high]
        ticks = tens[:: math.ceil(len(tens) / count)] if len(tens) > 2 else ticks[::2]
    return Scale(low=low, high=high, ticks=[(tick, f"{tick:g}") for tick in ticks], log=True)


def _tick(value: float, step: float, high: float) -> str:
    if not value:
        return "0"
    if high >= 5_000:
        return f"{value / 1000:,g}k"
    if 0 < step < 1e-4:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    decimals = next(d for d in range(8) if abs(round(step, d) - step) < step / 100)
    return f"{value:,.{decimals}f}"


def _value_scale(chart: Chart) -> Scale:
    """The scale of the values as they are, with ticks at round numbers of what they are shown as."""
    times, unit = metric_scale(chart.metric)
    shown = _shown_scale(chart, times)
    ticks = [(value / times, f"{label}{unit}") for value, label in shown.ticks]
    return Scale(low=shown.low / times, high=shown.high / times, ticks=ticks, log=shown.log)


def _shown_scale(chart: Chart, times: float) -> Scale:
    """Fits the clear curves whole and the bulk of the faint ones: one spike must not flatten the rest."""
    clear = [value for curve in chart.curves if not curve.faint for _, value in curve.points]
    clear += [value for curve in chart.curves for _, *ends in curve.band for value in ends]
    for curve in chart.curves:
        if curve.faint:
            values = sorted(value for _, value in curve.points)
            clear += values[len(values) // 50 : len(values) - len(values) // 50]
    low, high = times * min(clear), times * max(clear)
    if chart.may_log and low > 0 and high / low >= LOG_FROM:
        return log_scale(low, high, count=4 if chart.small else 6)
    if 0 < low < high * 0.4:
        low = 0.0
    if low == high and out_of_hundred(chart.metric):  # room around a flat line, but none beyond what is possible
        low, high = max(0.0, low - 5), min(100.0, high + 5)
    return linear_scale(low, high, count=3 if chart.small else 5)


def draw(chart: Chart) -> str:
    """The chart as a `<figure>`; without JavaScript every dot still says its step and value."""
    curves = [curve for curve in chart.curves if curve.points]
    if not curves:
        return ""
    x = linear_scale(0.0, max(chart.last_step, 1.0), count=4 if chart.small else 6, snug=True)
    y = _value_scale(chart)
    legend, story = [], []
    for curve in curves:
        if not curve.faint:
            first, last = (
                f"{chart.say(value)} at step {show(step)}" for step, value in (curve.points[0], curve.points[-1])
            )
            story.append(f"{curve.name} goes from {first} to {last}")
            name, value = escape(curve.name), chart.say(curve.points[-1][1])
            kind = " dashed" if curve.dashed else ""
            legend.append(f'<li class="tone-{curve.tone}{kind}"><span>{name}</span> <b>{value}</b></li>')
    title = escape(chart.title)
    hint = f' <small class="hint">log{"" if chart.small else " scale"}</small>' if y.log else ""
    return (
        f'<figure class="card chart{" small" if chart.small else ""}">'
        f'<figcaption><h3>{title}{hint}</h3><ul class="legend">{"".join(legend)}</ul></figcaption>'
        f'<div class="plot" tabindex="0" data-chart="{escape(_hover_data(chart, curves, y))}">'
        f'<svg class="frame" role="img"><title>{title}</title><desc>{escape("; ".join(story))}.</desc>'
        f"{_axes(x, y)}{_marks(chart.marks, x)}"
        '<svg class="curves" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
        f"{''.join(_band(curve, x, y) for curve in curves)}"
        f"{''.join(_path(curve, x, y) for curve in curves)}</svg>"
        f"{''.join(_dots(chart, curve, x, y) for curve in curves)}</svg></div></figure>\n"
    )


def _axes(x: Scale, y: Scale) -> str:
    parts = []
    for value, label in y.ticks:
        top = f"{100 - 100 * y.at(value):.2f}%"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{top}" y2="{top}"/>')
        parts.append(f'<text class="tick" x="0" y="{top}" dx="-10" dy="4" text-anchor="end">{label}</text>')
    for value, label in x.ticks:
        left, anchor = f"{100 * x.at(value):.2f}%", "middle" if value else "start"
        parts.append(f'<text class="tick" x="{left}" y="100%" dy="21" text-anchor="{anchor}">{label}</text>')
    parts.append('<text class="tick" x="0" y="100%" dx="-10" dy="21" text-anchor="end">step</text>')
    parts.append('<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>')
    return "".join(parts)


def _marks(marks: Sequence[Mark], x: Scale) -> str:
    parts: list[str] = []
    labelled: list[float] = []
    for mark in marks:
        at = x.at(mark.step)
        left, anchor = f"{100 * at:.2f}%", "end" if at > 0.95 else "middle"
        parts.append(f'<line class="mark" x1="{left}" x2="{left}" y1="0" y2="100%"/>')
        if all(abs(at - other) > 0.15 for other in labelled):  # of two near marks the first is named
            text = escape(mark.label)
            parts.append(f'<text class="tick" x="{left}" y="0" dy="-6" text-anchor="{anchor}">{text}</text>')
            labelled.append(at)
    return "".join(parts)


def _band(curve: Curve, x: Scale, y: Scale) -> str:
    if not curve.band:
        return ""
    there = [(step, low) for step, low, _ in curve.band]
    back = [(step, high) for step, _, high in reversed(curve.band)]
    corners = "L".join(f"{1000 * x.at(step):.1f} {1000 - 1000 * y.at(value):.1f}" for step, value in there + back)
    return f'<path class="band tone-{curve.tone}" d="M{corners}Z"/>'


def _path(curve: Curve, x: Scale, y: Scale) -> str:
    kind = f"{' faint' if curve.faint else ''}{' dashed' if curve.dashed else ''}"
    corners = "L".join(f"{1000 * x.at(step):.1f} {1000 - 1000 * y.at(value):.1f}" for step, value in curve.points)
    return f'<path class="line tone-{curve.tone}{kind}" d="M{corners}"/>'


def _dots(chart: Chart, curve: Curve, x: Scale, y: Scale) -> str:
    lonely = len(curve.points) == 1  # a path of one point is invisible
    if not lonely and (not curve.dots or len(curve.points) > MOST_DOTS):
        return ""
    parts = []
    for step, value in curve.points:
        place = f'cx="{100 * x.at(step):.2f}%" cy="{100 - 100 * y.at(value):.2f}%" r="3"'
        says = f"{escape(curve.name)}: {chart.say(value)} at step {show(step)}"
        parts.append(f'<circle class="dot tone-{curve.tone}" {place}><title>{says}</title></circle>')
    return "".join(parts)


def _hover_data(chart: Chart, curves: Sequence[Curve], y: Scale) -> str:
    """What the script below needs to find the points again and to say their values."""
    lines = [
        (
            curve.name,
            curve.tone,
            curve.faint,
            [(int(step), float(f"{value:.5g}")) for step, value in curve.points],
        )
        for curve in curves
    ]
    times, unit = metric_scale(chart.metric)
    data = {"last": max(chart.last_step, 1.0), "low": y.low, "high": y.high, "log": y.log, "curves": lines}
    data |= {"times": times, "unit": unit} if unit else {}
    return json.dumps(data, separators=(",", ":"))
