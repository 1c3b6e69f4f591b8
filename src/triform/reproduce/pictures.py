"""The losses of a system's variants over their steps, as one SVG that stands by itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from triform.charts import Point, Scale, linear_scale, log_scale, show
from triform.reproduce.outcome import Outcome

WIDTH, HEIGHT = 800, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 260, 18, 36  # the legend stands on the right
COLOURS = ("#2f5fd0", "#c2500f", "#17703f", "#8f4a00", "#7a3fb0", "#0f7c86")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b606b}.line{fill:none;stroke-width:1.8}"
    ".dashed{stroke-dasharray:4 3}.grid{stroke:#d9d6cf}.paper{fill:#fff}"
)


def picture(outcome: Outcome) -> str:
    """Training loss dashed, loss on held-out data whole; of the first seed of each variant."""
    lines = [
        (
            variant["name"],
            kind,
            [(float(step), float(loss)) for step, loss in points],
            COLOURS[place % len(COLOURS)],
        )
        for place, variant in enumerate(outcome["variants"])
        for kind, points in variant["curves"].items()
        if points
    ]
    if not lines:
        return ""
    every = [point for _, _, points, _ in lines for point in points]
    x = linear_scale(0.0, max(step for step, _ in every), count=5, snug=True)
    y = _losses(every)
    drawn = "".join(_curve(points, kind, colour, x, y) for _, kind, points, colour in lines)
    title = escape(f"Loss over steps: {outcome['system']}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{title}</title>\n"
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f"{_axes(x, y)}{drawn}{_legend(lines)}</svg>\n"
    )


def _losses(points: Sequence[Point]) -> Scale:
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    return log_scale(low, high) if low > 0 and high > 20 * low else linear_scale(min(low, high * 0.999), high)


def _across(x: Scale, step: float) -> float:
    return LEFT + x.at(step) * (WIDTH - LEFT - RIGHT)


def _down(y: Scale, loss: float) -> float:
    return TOP + (1 - y.at(loss)) * (HEIGHT - TOP - BOTTOM)


def _curve(points: Sequence[Point], kind: str, colour: str, x: Scale, y: Scale) -> str:
    corners = " ".join(f"{_across(x, step):.1f},{_down(y, loss):.1f}" for step, loss in points)
    dashed = " dashed" if kind == "train" else ""
    return f'<polyline class="line{dashed}" stroke="{colour}" points="{corners}"/>\n'


def _axes(x: Scale, y: Scale) -> str:
    parts = []
    for value, label in y.ticks:
        at = _down(y, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in x.ticks:
        parts.append(f'<text x="{_across(x, value):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">step</text>')
    return "\n".join(parts) + "\n"


def _legend(lines: Sequence[tuple[str, str, list[Point], str]]) -> str:
    parts = []
    for place, (name, kind, points, colour) in enumerate(lines):
        at = TOP + 8 + 18 * place
        dashed = " dashed" if kind == "train" else ""
        left = WIDTH - RIGHT + 14
        parts.append(
            f'<line class="line{dashed}" stroke="{colour}" x1="{left}" x2="{left + 22}" y1="{at}" y2="{at}"/>'
        )
        says = escape(f"{name}, {kind}: {show(points[-1][1])}")
        parts.append(f'<text x="{left + 28}" y="{at + 4}">{says}</text>')
    return "\n".join(parts) + "\n"
