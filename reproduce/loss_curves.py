"""Draw curves of several variants as standalone SVG files: over steps, epochs, distances and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from triform.formatting import metric_label
from triform.reporting.charts import Point, Scale, format_number, linear_scale, log_scale
from triform.reporting.mean_curves import mean_with_band

WIDTH, HEIGHT = 800, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 260, 18, 36  # the legend is on the right
COLOURS = ("#2f5fd0", "#c2500f", "#17703f", "#8f4a00", "#7a3fb0", "#0f7c86")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b606b}.line{fill:none;stroke-width:1.8}"
    ".dashed{stroke-dasharray:4 3}.grid{stroke:#d9d6cf}.paper{fill:#fff}"
)


class Line(NamedTuple):
    """A line of a figure."""

    name: str
    points: list[Point]
    colour: str
    dashed: bool = False


def render_loss_curves(result: Mapping[str, Any]) -> str:
    """Draw the loss curves of a result of `python -m reproduce`, one colour per variant.

    Training loss is dashed, validation loss is solid. Both are those of the first seed.

    Args:
        result: The contents of `results/NAME.json`: the name of the system and its variants with their curves.

    Returns:
        The SVG, or an empty string if no variant has a curve.
    """
    lines = [
        Line(
            f"{variant['name']}, {kind}",
            [(float(step), float(loss)) for step, loss in points],
            COLOURS[index % len(COLOURS)],
            dashed=kind == "train",
        )
        for index, variant in enumerate(result["variants"])
        for kind, points in variant["curves"].items()
        if points
    ]
    return render_lines(f"Loss over steps: {result['system']}", lines, "step") if lines else ""


def render_gradients(result: Mapping[str, Any]) -> str:
    """Draw the norm of gradients over the distance, the mean over the seeds of each variant.

    Returns:
        The SVG, or an empty string if gradients were not measured.
    """
    lines = []
    for index, variant in enumerate(result["variants"]):
        values_by_distance: dict[float, list[float]] = {}
        for run in variant["runs"]:
            for key, value in run["scores"].get("gradients", {}).items():
                values_by_distance.setdefault(math.log2(float(key.split()[1])), []).append(value)
        points = [(distance, sum(values) / len(values)) for distance, values in values_by_distance.items()]
        lines += [Line(variant["name"], points, COLOURS[index % len(COLOURS)])] if points else []
    title = f"Norm of the gradient, relative to distance 0: {result['system']}"
    return render_lines(title, lines, "log2 of the distance in tokens") if lines else ""


def render_validation_curves(result: Mapping[str, Any], metric: str, group: str) -> str:
    """Draw a metric on validation data over epochs, the mean over the seeds of each variant of a group.

    Returns:
        The SVG, or an empty string if the result has no such curves.
    """
    lines: list[Line] = []
    for variant in result["variants"]:
        runs = [run["validations"] for run in variant["runs"] if run.get("validations")]
        if variant["setting"] == group and runs:
            points, _ = mean_with_band([[(float(epoch), float(value)) for epoch, value in run] for run in runs])
            lines.append(Line(variant["name"], points, COLOURS[len(lines) % len(COLOURS)]))
    title = f"{metric} on validation data over epochs: {result['system']}"
    return render_lines(title, lines, "epoch", from_zero=True) if lines else ""


def render_by_length(result: Mapping[str, Any], sets: Sequence[str], metric: str) -> str:
    """Draw a metric over the lengths of texts, the mean over the seeds of each variant.

    Args:
        result: The contents of `reproduce/results/NAME.json`.
        sets: The names of the sets by length, such as "65 to 128".
        metric: The metric to draw.

    Returns:
        The SVG, or an empty string if fewer than two sets were evaluated.
    """
    lines = []
    for index, variant in enumerate(result["variants"]):
        points = []
        for position, name in enumerate(sets):
            scores = [run["scores"].get(name, {}) for run in variant["runs"]]
            values = [entry[metric] for entry in scores if metric in entry]
            points += [(float(position), sum(values) / len(values))] if values else []
        lines += [Line(variant["name"], points, COLOURS[index % len(COLOURS)])] if len(points) > 1 else []
    x = Scale(low=0.0, high=len(sets) - 1.0, ticks=list(enumerate(sets)))
    title = f"{metric_label(metric)} by length: {result['system']}"
    return render_lines(title, lines, "length in tokens", x=x) if lines else ""


def render_lines(
    title: str, lines: Sequence[Line], x_title: str, *, x: Scale | None = None, from_zero: bool = False
) -> str:
    """Draw lines as a standalone SVG.

    Args:
        title: The title of the figure.
        lines: The lines, in the order of the legend.
        x_title: What the horizontal axis shows.
        x: The horizontal axis. Otherwise, it starts at zero.
        from_zero: Use a linear vertical axis that starts at zero. Otherwise, the scale depends on the values.
    """
    all_points = [point for line in lines for point in line.points]
    x = x or linear_scale(0.0, max(step for step, _ in all_points), count=5, exact_ends=True)
    y = linear_scale(0.0, max(value for _, value in all_points)) if from_zero else _loss_scale(all_points)
    polylines = "".join(_render_polyline(line, x, y) for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f"{_render_axes(x, y, x_title)}{polylines}{_render_legend(lines)}</svg>\n"
    )


def _loss_scale(points: Sequence[Point]) -> Scale:
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    return log_scale(low, high) if low > 0 and high > 20 * low else linear_scale(min(low, high * 0.999), high)


def _x_position(x: Scale, step: float) -> float:
    return LEFT + x.position(step) * (WIDTH - LEFT - RIGHT)


def _y_position(y: Scale, loss: float) -> float:
    return TOP + (1 - y.position(loss)) * (HEIGHT - TOP - BOTTOM)


def _render_polyline(line: Line, x: Scale, y: Scale) -> str:
    coordinates = " ".join(f"{_x_position(x, step):.1f},{_y_position(y, loss):.1f}" for step, loss in line.points)
    dashed = " dashed" if line.dashed else ""
    return f'<polyline class="line{dashed}" stroke="{line.colour}" points="{coordinates}"/>\n'


def _render_axes(x: Scale, y: Scale, x_title: str) -> str:
    elements = []
    for value, label in y.ticks:
        y_position = _y_position(y, value)
        elements.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_position:.1f}" y2="{y_position:.1f}"/>'
        )
        elements.append(f'<text x="{LEFT - 8}" y="{y_position + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in x.ticks:
        elements.append(
            f'<text x="{_x_position(x, value):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{label}</text>'
        )
    elements.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{x_title}</text>')
    return "\n".join(elements) + "\n"


def _render_legend(lines: Sequence[Line]) -> str:
    elements = []
    for index, line in enumerate(lines):
        y_position = TOP + 8 + 18 * index
        dashed = " dashed" if line.dashed else ""
        left = WIDTH - RIGHT + 14
        ends = f'x1="{left}" x2="{left + 22}" y1="{y_position}" y2="{y_position}"'
        elements.append(f'<line class="line{dashed}" stroke="{line.colour}" {ends}/>')
        label = escape(f"{line.name}: {format_number(line.points[-1][1])}")
        elements.append(f'<text x="{left + 28}" y="{y_position + 4}">{label}</text>')
    return "\n".join(elements) + "\n"
