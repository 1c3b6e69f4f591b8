"""Draw line charts as inline SVG, without a library or a network, and with the same text size at every width.

A chart consists of two nested SVGs. The outer one has no viewBox: text and dots are positioned in percent and keep
their size. The inner one is stretched to the same area (`preserveAspectRatio="none"`) and holds only the curves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

from triform.formatting import format_metric, has_percent_scale, metric_scale

Point = tuple[float, float]  # (step, value)
BandPoint = tuple[float, float, float]  # (step, low, high)

MAX_POINTS = 600  # more than a screen can show; keeps the page small
MAX_DOTS = 60  # beyond this, dots would merge into a thick line
MIN_LOG_SCALE_RATIO = 20.0  # a curve whose largest value is this many times its smallest is drawn on a log scale
COLOURS = "abcdefgh"  # tones of the style sheet; further curves repeat them, dashed


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart. `tone` is the name of its colour in the style sheet."""

    name: str
    points: Sequence[Point]
    tone: str = "a"
    faint: bool = False  # drawn in the background; extreme values do not stretch the axis
    dots: bool = False
    dashed: bool = False
    band: Sequence[BandPoint] = ()  # the spread of the runs behind a mean


@dataclass(frozen=True, kw_only=True)
class VerticalLine:
    """A vertical line with a label at a step."""

    step: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over the same range of steps."""

    title: str
    curves: Sequence[Curve]
    last_step: float
    vertical_lines: Sequence[VerticalLine] = ()
    small: bool = False
    allow_log_scale: bool = True
    metric: str = ""  # the name of the metric, if the values are one; fractions are drawn in percent

    def format_value(self, value: float) -> str:
        """Format a value of the chart."""
        return format_metric(self.metric, value) if self.metric else format_number(value)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis: its range, its ticks, and whether it is logarithmic."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1. Values outside the range are clipped."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def format_number(value: float) -> str:
    """Format a number with four significant digits and thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def downsample(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Reduce a curve to at most `limit` points: both ends and the extremes of every bin, which keeps spikes."""
    if len(points) <= limit:
        return list(points)
    inner, n_bins = points[1:-1], (limit - 2) // 2
    result = [points[0]]
    for i in range(n_bins):
        bin_points = inner[i * len(inner) // n_bins : (i + 1) * len(inner) // n_bins]
        result += sorted({min(bin_points, key=lambda point: point[1]), max(bin_points, key=lambda point: point[1])})
    return [*result, points[-1]]


def smooth(points: Sequence[Point]) -> list[Point]:
    """Return the centred running mean. Its window is short at the start, where a loss falls fast."""
    half = max(4, len(points) // 25)
    sums = list(accumulate((value for _, value in points), initial=0.0))
    means = []
    for i, (step, _) in enumerate(points):
        radius = min(half, i)
        first, last = i - radius, min(i + radius, len(points) - 1)
        means.append((step, (sums[last + 1] - sums[first]) / (last + 1 - first)))
    return means


def linear_scale(low: float, high: float, *, count: int = 5, exact_ends: bool = False) -> Scale:
    """Return a linear scale with round ticks and round ends. `exact_ends` keeps the given ends."""
    if high <= low:
        margin = abs(high) / 2 or 1.0
        low, high = low - margin, high + margin
    raw_step = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw_step))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw_step * 0.999)
    if not exact_ends:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [(i * step, _format_tick(i * step, step, high)) for i in range(first, last + 1)]
    return Scale(low=low, high=high, ticks=ticks)


def log_scale(low: float, high: float, *, count: int = 6) -> Scale:
    """Return a logarithmic scale with ticks at 1, 2, 5, 10, …, or at powers of ten if it spans many."""
    low, high = low / 1.12, high * 1.12
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(ticks) > count:
        powers_of_ten = [10.0**p for p in powers if low <= 10.0**p <= high]
        ticks = powers_of_ten[:: math.ceil(len(powers_of_ten) / count)] if len(powers_of_ten) > 2 else ticks[::2]
    return Scale(low=low, high=high, ticks=[(tick, f"{tick:g}") for tick in ticks], log=True)


def _format_tick(value: float, step: float, high: float) -> str:
    if not value:
        return "0"
    if high >= 5_000:
        return f"{value / 1000:,g}k"
    if 0 < step < 1e-4:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    decimals = next(d for d in range(8) if abs(round(step, d) - step) < step / 100)
    return f"{value:,.{decimals}f}"


def _value_scale(chart: Chart) -> Scale:
    """Return the scale of the stored values, with ticks at round numbers of the displayed values."""
    factor, unit = metric_scale(chart.metric)
    displayed = _displayed_scale(chart, factor)
    ticks = [(value / factor, f"{label}{unit}") for value, label in displayed.ticks]
    return Scale(low=displayed.low / factor, high=displayed.high / factor, ticks=ticks, log=displayed.log)


def _displayed_scale(chart: Chart, factor: float) -> Scale:
    """Return the scale of the displayed values, which covers the main curves and 96 % of the faint ones."""
    visible = [value for curve in chart.curves if not curve.faint for _, value in curve.points]
    visible += [value for curve in chart.curves for _, *ends in curve.band for value in ends]
    for curve in chart.curves:
        if curve.faint:
            values = sorted(value for _, value in curve.points)
            visible += values[len(values) // 50 : len(values) - len(values) // 50]
    low, high = factor * min(visible), factor * max(visible)
    if chart.allow_log_scale and low > 0 and high / low >= MIN_LOG_SCALE_RATIO:
        return log_scale(low, high, count=4 if chart.small else 6)
    if 0 < low < high * 0.4:
        low = 0.0
    if low == high and has_percent_scale(chart.metric):  # space around a flat line, within the possible range
        low, high = max(0.0, low - 5), min(100.0, high + 5)
    return linear_scale(low, high, count=3 if chart.small else 5)


def render_chart(chart: Chart, *, with_script: bool = True) -> str:
    """Draw the chart as a `<figure>`. Without JavaScript, the tooltip of every dot shows its step and value.

    Args:
        chart: The chart.
        with_script: Whether the page has page.js, which shows the values near the pointer.
    """
    curves = [curve for curve in chart.curves if curve.points]
    if not curves:
        return ""
    x = linear_scale(0.0, max(chart.last_step, 1.0), count=4 if chart.small else 6, exact_ends=True)
    y = _value_scale(chart)
    legend, descriptions = [], []
    for curve in curves:
        if not curve.faint:
            first, last = (
                f"{chart.format_value(value)} at step {format_number(step)}"
                for step, value in (curve.points[0], curve.points[-1])
            )
            descriptions.append(f"{curve.name}: from {first} to {last}")
            name, value = escape(curve.name), chart.format_value(curve.points[-1][1])
            style = " dashed" if curve.dashed else ""
            legend.append(f'<li class="tone-{curve.tone}{style}"><span>{name}</span> <b>{value}</b></li>')
    title = escape(chart.title)
    hover_data = f' tabindex="0" data-chart="{escape(_hover_data(chart, curves, y))}"' if with_script else ""
    hint = f' <small class="hint">log{"" if chart.small else " scale"}</small>' if y.log else ""
    return (
        f'<figure class="card chart{" small" if chart.small else ""}">'
        f'<figcaption><h3>{title}{hint}</h3><ul class="legend">{"".join(legend)}</ul></figcaption>'
        f'<div class="plot"{hover_data}>'
        f'<svg class="frame" role="img"><title>{title}</title><desc>{escape("; ".join(descriptions))}.</desc>'
        f"{_render_axes(x, y)}{_render_vertical_lines(chart.vertical_lines, x)}"
        '<svg class="curves" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
        f"{''.join(_render_band(curve, x, y) for curve in curves)}"
        f"{''.join(_render_path(curve, x, y) for curve in curves)}</svg>"
        f"{''.join(_render_dots(chart, curve, x, y) for curve in curves)}</svg></div></figure>\n"
    )


def _render_axes(x: Scale, y: Scale) -> str:
    parts = []
    for value, label in y.ticks:
        top = f"{100 - 100 * y.position(value):.2f}%"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{top}" y2="{top}"/>')
        parts.append(f'<text class="tick" x="0" y="{top}" dx="-10" dy="4" text-anchor="end">{label}</text>')
    for value, label in x.ticks:
        left, anchor = f"{100 * x.position(value):.2f}%", "middle" if value else "start"
        parts.append(f'<text class="tick" x="{left}" y="100%" dy="21" text-anchor="{anchor}">{label}</text>')
    parts.append('<text class="tick" x="0" y="100%" dx="-10" dy="21" text-anchor="end">step</text>')
    parts.append('<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>')
    return "".join(parts)


def _render_vertical_lines(vertical_lines: Sequence[VerticalLine], x: Scale) -> str:
    parts: list[str] = []
    label_positions: list[float] = []
    for line in vertical_lines:
        position = x.position(line.step)
        left, anchor = f"{100 * position:.2f}%", "end" if position > 0.95 else "middle"
        parts.append(f'<line class="mark" x1="{left}" x2="{left}" y1="0" y2="100%"/>')
        # Of two close lines, only the first has a label.
        if all(abs(position - other) > 0.15 for other in label_positions):
            text = escape(line.label)
            parts.append(f'<text class="tick" x="{left}" y="0" dy="-6" text-anchor="{anchor}">{text}</text>')
            label_positions.append(position)
    return "".join(parts)


def _render_band(curve: Curve, x: Scale, y: Scale) -> str:
    if not curve.band:
        return ""
    lower = [(step, low) for step, low, _ in curve.band]
    upper = [(step, high) for step, _, high in reversed(curve.band)]
    corners = "L".join(
        f"{1000 * x.position(step):.1f} {1000 - 1000 * y.position(value):.1f}" for step, value in lower + upper
    )
    return f'<path class="band tone-{curve.tone}" d="M{corners}Z"/>'


def _render_path(curve: Curve, x: Scale, y: Scale) -> str:
    style = f"{' faint' if curve.faint else ''}{' dashed' if curve.dashed else ''}"
    corners = "L".join(
        f"{1000 * x.position(step):.1f} {1000 - 1000 * y.position(value):.1f}" for step, value in curve.points
    )
    return f'<path class="line tone-{curve.tone}{style}" d="M{corners}"/>'


def _render_dots(chart: Chart, curve: Curve, x: Scale, y: Scale) -> str:
    single_point = len(curve.points) == 1  # a path with one point would be invisible
    if not single_point and (not curve.dots or len(curve.points) > MAX_DOTS):
        return ""
    parts = []
    for step, value in curve.points:
        attributes = f'cx="{100 * x.position(step):.2f}%" cy="{100 - 100 * y.position(value):.2f}%" r="3"'
        tooltip = f"{escape(curve.name)}: {chart.format_value(value)} at step {format_number(step)}"
        parts.append(f'<circle class="dot tone-{curve.tone}" {attributes}><title>{tooltip}</title></circle>')
    return "".join(parts)


def _hover_data(chart: Chart, curves: Sequence[Curve], y: Scale) -> str:
    """Return the data of a chart for page.js, which shows the values near the pointer."""
    curve_data = [
        (
            curve.name,
            curve.tone,
            curve.faint,
            [(int(step), float(f"{value:.5g}")) for step, value in curve.points],
        )
        for curve in curves
    ]
    factor, unit = metric_scale(chart.metric)
    data = {"last": max(chart.last_step, 1.0), "low": y.low, "high": y.high, "log": y.log, "curves": curve_data}
    data |= {"times": factor, "unit": unit} if unit else {}
    return json.dumps(data, separators=(",", ":"))
