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

Point = tuple[float, float]  # (step, value)

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
    """Fits the clear curves whole and the bulk of the faint ones: one spike must not flatten the rest."""
    clear = [value for curve in chart.curves if not curve.faint for _, value in curve.points]
    for curve in chart.curves:
        if curve.faint:
            values = sorted(value for _, value in curve.points)
            clear += values[len(values) // 50 : len(values) - len(values) // 50]
    low, high = min(clear), max(clear)
    if chart.may_log and low > 0 and high / low >= LOG_FROM:
        return log_scale(low, high, count=4 if chart.small else 6)
    if 0 < low < high * 0.4:
        low = 0.0
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
                f"{show(value)} at step {show(step)}" for step, value in (curve.points[0], curve.points[-1])
            )
            story.append(f"{curve.name} goes from {first} to {last}")
            name, value = escape(curve.name), show(curve.points[-1][1])
            legend.append(f'<li class="tone-{curve.tone}"><span>{name}</span> <b>{value}</b></li>')
    title = escape(chart.title)
    hint = f' <small class="hint">log{"" if chart.small else " scale"}</small>' if y.log else ""
    return (
        f'<figure class="card chart{" small" if chart.small else ""}">'
        f'<figcaption><h3>{title}{hint}</h3><ul class="legend">{"".join(legend)}</ul></figcaption>'
        f'<div class="plot" tabindex="0" data-chart="{escape(_hover_data(chart, curves, y))}">'
        f'<svg class="frame" role="img"><title>{title}</title><desc>{escape("; ".join(story))}.</desc>'
        f"{_axes(x, y)}{_marks(chart.marks, x)}"
        '<svg class="curves" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
        f"{''.join(_path(curve, x, y) for curve in curves)}</svg>"
        f"{''.join(_dots(curve, x, y) for curve in curves)}</svg></div></figure>\n"
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


def _path(curve: Curve, x: Scale, y: Scale) -> str:
    corners = "L".join(f"{1000 * x.at(step):.1f} {1000 - 1000 * y.at(value):.1f}" for step, value in curve.points)
    return f'<path class="line tone-{curve.tone}{" faint" if curve.faint else ""}" d="M{corners}"/>'


def _dots(curve: Curve, x: Scale, y: Scale) -> str:
    lonely = len(curve.points) == 1  # a path of one point is invisible
    if not lonely and (not curve.dots or len(curve.points) > MOST_DOTS):
        return ""
    parts = []
    for step, value in curve.points:
        place = f'cx="{100 * x.at(step):.2f}%" cy="{100 - 100 * y.at(value):.2f}%" r="3"'
        says = f"{escape(curve.name)}: {show(value)} at step {show(step)}"
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
    data = {"last": max(chart.last_step, 1.0), "low": y.low, "high": y.high, "log": y.log, "curves": lines}
    return json.dumps(data, separators=(",", ":"))


# Text reaches the page through textContent only, so a name can never become markup.
SCRIPT = """
document.documentElement.classList.add('js');
const say = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en-US') : String(+v.toPrecision(4));
const make = (tag, parent, name, text = '') => {
  const node = parent.appendChild(document.createElement(tag));
  node.className = name; node.textContent = text; return node;
};
const near = (points, step) => points.reduce(
  (best, p, i) => Math.abs(p[0] - step) < Math.abs(points[best][0] - step) ? i : best, 0);
for (const plot of document.querySelectorAll('[data-chart]')) {
  const {last, low, high, log, curves} = JSON.parse(plot.dataset.chart);
  const scale = v => log ? Math.log(Math.max(v, low)) : v;
  const height = v => Math.min(1, Math.max(0, (scale(v) - scale(low)) / (scale(high) - scale(low))));
  const rule = make('i', plot, 'rule'), tip = make('div', plot, 'tip');
  const rings = curves.map(([, tone]) => make('i', plot, 'ring tone-' + tone));
  tip.setAttribute('role', 'status');
  const densest = curves.map(curve => curve[3]).reduce((a, b) => b.length > a.length ? b : a);
  let at = densest.length - 1;
  const hide = () => plot.classList.remove('live');
  const show = index => {
    at = Math.min(densest.length - 1, Math.max(0, index));
    const step = densest[at][0], x = 100 * step / last;
    plot.classList.add('live');
    rule.style.left = tip.style.left = x + '%';
    tip.classList.toggle('flip', x > 55);
    tip.textContent = '';
    make('div', tip, 'tip-step', 'step ' + say(step));
    curves.forEach(([name, tone, faint, points], i) => {
      const [s, v] = points[near(points, step)], row = make('div', tip, 'tip-row tone-' + tone);
      make('span', row, faint ? 'faint' : '', name + (s === step ? '' : ' at ' + say(s)));
      make('b', row, '', say(v));
      rings[i].hidden = faint;
      rings[i].style.left = 100 * s / last + '%';
      rings[i].style.top = 100 - 100 * height(v) + '%';
    });
  };
  const follow = e => {
    const box = plot.querySelector('svg').getBoundingClientRect();
    show(near(densest, last * (e.clientX - box.left) / box.width));
  };
  for (const name of ['pointermove', 'pointerdown']) plot.addEventListener(name, follow);
  for (const name of ['pointerleave', 'blur']) plot.addEventListener(name, hide);
  plot.addEventListener('keydown', e => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (move) { e.preventDefault(); show(plot.classList.contains('live') ? at + move : at); }
    if (e.key === 'Escape') hide();
  });
}
"""

# Contrast of text on its ground is at least 4.5 to 1 in both schemes; print takes the light one.
STYLE = """
:root { --paper: #f7f6f3; --card: #fff; --ink: #1b1e25; --soft: #5b606b; --line: #e4e1da; --grid: #eceae4;
  --a: #2f5fd0; --b: #c2500f; --good: #17703f; --good-bg: #e0f2e7; --warn: #8f4a00; --warn-bg: #fdeed6;
  --live: #2450b5; --live-bg: #e3ebfd; --mono: ui-monospace, "SF Mono", Menlo, Consolas, monospace }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #121419; --card: #1a1d24; --ink: #eceae6;
  --soft: #a3a8b4; --line: #2c303a; --grid: #262a33; --a: #86a9ff; --b: #ffa066; --good: #7fdca6;
  --good-bg: #17372a; --warn: #ffc37a; --warn-bg: #3a2b16; --live: #a5beff; --live-bg: #1d2b52 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main, footer { max-width: 1160px; margin: 0 auto; padding: clamp(28px, 5vw, 56px) clamp(16px, 4vw, 40px) 0 }
footer { padding-bottom: 40px; color: var(--soft); font-size: 13px }
h1 { font-size: clamp(26px, 4vw, 36px); line-height: 1.15; letter-spacing: -.022em; font-weight: 680;
  margin: 6px 0 8px; display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px }
h2 { font-size: 19px; letter-spacing: -.01em; font-weight: 650; margin: 48px 0 14px }
h3 { font-size: 14px; font-weight: 620; margin: 0 }
p { margin: 0 0 10px }
a { color: var(--a); text-underline-offset: 3px }
a, .pill, .tip, .num, .name, .hint, thead th { white-space: nowrap }
h1, dd, td, pre { overflow-wrap: anywhere }
.eyebrow { font-size: 13px; font-weight: 600; margin: 0 }
.eyebrow, .lead, .empty, .hint, .tile dt, .tile .note, .legend, .tip-step, thead th { color: var(--soft) }
.hint { font-weight: 400; font-size: 12px; margin-left: 6px }
.pill { display: inline-block; font-size: 13px; font-weight: 600; letter-spacing: 0; line-height: 1;
  padding: 6px 11px; border-radius: 99px; color: var(--good); background: var(--good-bg) }
.pill.warn, .notices { color: var(--warn); background: var(--warn-bg) }
.pill.live { color: var(--live); background: var(--live-bg) }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px }
.tiles { display: grid;
  grid-template-columns: repeat(auto-fill, minmax(156px, 1fr)); gap: 12px; margin: 28px 0 12px }
.tile { padding: 14px 16px 13px; font-size: 13px }
.tile dd { margin: 0 }
.tile .value { font-size: 24px; line-height: 1.35; font-weight: 650; letter-spacing: -.02em }
.tile .long { font-size: 18px; line-height: 1.8 }
.tile:first-child .value { color: var(--b) }
progress { appearance: none; border: 0; display: block; width: 100%; height: 4px; margin-top: 6px }
progress, progress::-webkit-progress-bar { background: var(--grid); border-radius: 9px; overflow: hidden }
progress::-webkit-progress-value { background: var(--a) }
progress::-moz-progress-bar { background: var(--a) }
.notices { margin: 0; border-radius: 12px; padding: 11px 16px; font-size: 14px; list-style: none }
.charts { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 12px }
.chart { flex: 1 1 420px; min-width: 0; margin: 0; padding: 16px 24px 40px 14px }
.chart.small { flex-basis: 236px; padding-bottom: 36px }
.thirds .chart.small { flex-basis: 290px }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 16px; margin: 0 0 28px }
.small figcaption { margin-bottom: 16px; flex-wrap: nowrap }
.legend { display: flex; gap: 16px; list-style: none; margin: 0; padding: 0; font-size: 13px }
.legend span::before, .tip-row::before { content: ""; display: inline-block; width: 12px; height: 3px;
  border-radius: 2px; background: var(--tone); vertical-align: middle; margin-right: 7px }
.legend b, .tip b { color: var(--ink); font-weight: 620 }
.small .legend span { display: none }
.tone-a { --tone: var(--a) }
.tone-b { --tone: var(--b) }
.plot { position: relative; margin-left: 48px; touch-action: pan-y; border-radius: 4px; outline-offset: 6px }
.frame { display: block; width: 100%; height: 270px }
.small .frame { height: 120px }
.frame, .curves { overflow: visible }
.js .frame { pointer-events: none }
.grid { stroke: var(--grid) }
.base { stroke: var(--line) }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums }
.mark { stroke: var(--soft); stroke-dasharray: 2 4 }
.line { fill: none; stroke: var(--tone); stroke-width: 2; vector-effect: non-scaling-stroke;
  stroke-linejoin: round }
.small .line { stroke-width: 1.6 }
.line.faint { stroke-width: 1; opacity: .35 }
.dot { fill: var(--card); stroke: var(--tone); stroke-width: 2 }
.small .dot { r: 1.6px }
.rule, .ring, .tip { position: absolute; visibility: hidden; pointer-events: none }
.live > .rule, .live > .ring:not([hidden]), .live > .tip { visibility: visible }
.rule { top: 0; bottom: 0; border-left: 1px solid var(--soft) }
.ring { padding: 4px; margin: -4px; border-radius: 9px; background: var(--tone) }
.tip { top: 4px; z-index: 2; margin-left: 14px; padding: 8px 12px; border-radius: 8px; font-size: 13px;
  background: var(--card); border: 1px solid var(--line); box-shadow: 0 6px 20px rgb(0 0 0 / .16) }
.tip.flip { transform: translateX(calc(-100% - 28px)) }
.tip-row { display: flex; align-items: center; font-variant-numeric: tabular-nums }
.tip-row span { flex: 1; margin-right: 18px }
.tip-row .faint { color: var(--soft) }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: 10px 16px; border-top: 1px solid var(--grid) }
th { font-weight: 600 }
thead th { font-size: 13px; border-top: 0; font-weight: 400 }
.num { text-align: right }
.text { white-space: pre-wrap; min-width: 130px }
.miss :nth-child(2) { color: var(--warn) }
.groups { columns: 310px; column-gap: 12px }
.group { break-inside: avoid; margin-bottom: 12px; padding: 13px 16px 8px }
.group th, .group td { padding: 5px 0; font-size: 13px }
.group th { color: var(--soft); font-weight: 400; padding-right: 14px }
.group td, pre, code { font-family: var(--mono) }
.group td { text-align: right }
pre { margin: 0 0 14px; padding: 12px 16px; font-size: 13px; white-space: pre-wrap }
@media print { :root { --paper: #fff } * { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  main, footer { max-width: none; padding: 0 } h2 { margin-top: 24px; break-after: avoid }
  .card, .tile, tr { break-inside: avoid } .frame { height: 200px }
  .chart { flex-basis: 300px } .chart.small, .thirds .chart.small { flex-basis: 190px }
  .tip, .rule, .ring { display: none } }
"""
