"""Draw horizontal strips as SVG: a mean with its interval and individual runs, or a bar that starts at zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from triform.reporting.charts import Scale, linear_scale


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One row of an interval plot.

    A row with `runs` is drawn as a mean with its interval and one dot per run, a row without as a bar.
    """

    name: str
    css_class: str
    value_text: str
    value: float
    low: float = math.nan
    high: float = math.nan
    runs: Sequence[float] = ()


def render_interval_plot(title: str, hint: str, strips: Sequence[Strip]) -> str:
    """Draw the strips as a `<figure>`, one below the other, with a common axis if they have intervals."""
    values = [value for strip in strips for value in (*strip.runs, strip.low, strip.high) if math.isfinite(value)]
    scale = linear_scale(min(values), max(values), count=4) if values else None
    longest = max((strip.value for strip in strips), default=0.0) or 1.0
    elements = []
    for strip in strips:
        graphic = _render_interval(strip, scale) if scale else _render_bar(strip.value / longest)
        description = escape(f"{strip.name}: {strip.value_text}")
        elements.append(
            f"<b>{escape(strip.name)}</b>"
            f'<svg class="{strip.css_class}" role="img"><title>{description}</title>{graphic}</svg>'
            f'<span class="value">{escape(strip.value_text)}</span>'
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


def _render_interval(strip: Strip, scale: Scale) -> str:
    elements = ['<line class="grid" x1="0" x2="100%" y1="15" y2="15"/>']
    if math.isfinite(strip.low):
        left, right = 100 * scale.position(strip.low), 100 * scale.position(strip.high)
        elements.append(
            f'<rect class="interval" x="{left:.2f}%" y="7" width="{right - left:.2f}%" height="16" rx="3"/>'
        )
    elements += [
        f'<circle class="run" cx="{100 * scale.position(value):.2f}%" cy="15" r="2.5"/>' for value in strip.runs
    ]
    mean_position = f"{100 * scale.position(strip.value):.2f}%"
    return "".join([*elements, f'<line class="mean" x1="{mean_position}" x2="{mean_position}" y1="5" y2="25"/>'])
