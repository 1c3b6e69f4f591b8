"""Draw several variants in one chart: the mean over the runs of each, and a band of one standard deviation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from triform.evaluation.statistics import summarise
from triform.reporting.charts import COLOURS, BandPoint, Chart, Curve, Point, render_chart, smooth
from triform.reporting.run_history import RunHistory

MAX_CURVE_STEPS = 200  # points of a mean curve


def colour_class(index: int) -> str:
    """Return the CSS class for the colour of a variant."""
    return f"tone-{COLOURS[index % len(COLOURS)]}"


def render_mean_chart(
    title: str, histories: Mapping[str, Sequence[RunHistory]], event: str, metric: str, eval_set: str = ""
) -> str:
    """Draw the mean of a metric over the runs of each variant.

    Args:
        title: The title of the chart.
        histories: The histories of the runs of each variant, by the name of the variant.
        event: The events that hold the metric: "train", whose values are smoothed, "valid" or "monitor".
        metric: The name of the metric.
        eval_set: For the event "monitor": the name of the set.

    Returns:
        The chart as HTML, or an empty string if no run has the metric.
    """
    curves = []
    for index, (variant, runs) in enumerate(histories.items()):
        run_curves = [points for run in runs if (points := run.curve(event, metric, eval_set))]
        mean, band = mean_with_band([smooth(points) if event == "train" else points for points in run_curves])
        curve = Curve(
            name=variant,
            points=mean,
            band=band,
            tone=COLOURS[index % len(COLOURS)],
            dots=event != "train" and len(mean) < 12,
            dashed=index >= len(COLOURS),
        )
        curves += [curve] if mean else []
    last_step = max((run.last_step for runs in histories.values() for run in runs), default=1)
    return render_chart(Chart(title=title, curves=curves, last_step=last_step, metric=metric))


def mean_with_band(runs: Sequence[Sequence[Point]]) -> tuple[list[Point], list[BandPoint]]:
    """Return the mean over runs at each step that most runs have, and a band of one standard deviation.

    The band is limited by the lowest and the highest run, so it never shows an impossible value. A single run has
    no band.
    """
    values_by_step: dict[float, list[float]] = defaultdict(list)
    for points in runs:
        for step, value in points:
            values_by_step[step].append(value)
    steps = sorted(step for step, values in values_by_step.items() if 2 * len(values) > len(runs))
    stride = math.ceil(len(steps) / MAX_CURVE_STEPS)
    steps = sorted({*steps[:: stride or 1], *steps[-1:]})
    mean, band = [], []
    for step in steps:
        values = values_by_step[step]
        step_mean, deviation, *_ = summarise(values)
        mean.append((step, step_mean))
        band.append((step, max(min(values), step_mean - deviation), min(max(values), step_mean + deviation)))
    return mean, band if len(runs) > 1 else []
