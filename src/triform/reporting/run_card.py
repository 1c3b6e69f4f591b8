"""Show a run in a notebook: its task, data, size, best metric and curves."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from triform.analysis.parameters import count_parameters
from triform.errors import DataError
from triform.html.elements import render_stat_card
from triform.html.notebook import render_output
from triform.reporting.charts import downsample, render_chart
from triform.reporting.run_history import RunHistory, read_history
from triform.reporting.run_report import headline_charts, render_header, render_stat_cards

if TYPE_CHECKING:
    from triform.tasks import Task

MAX_CURVE_POINTS = 120  # a curve in a notebook is small, and is stored in the file of the notebook


def render_run_card(path: Path, task: Task, precision: str) -> str:
    """Return the card of a run. A model that was imported and not trained here has no curves."""
    data = task.config.data
    files = [name for name in (data.train, data.source, data.target) if name]
    source = f'<p class="lead">Data: {escape(", ".join(files))} · Folder: {escape(str(path))}</p>'
    try:
        history = read_history(path)
    except DataError:
        return render_output(_render_untrained(path, task, precision) + source)
    return render_output(render_header(history) + source + render_stat_cards(history) + _render_curves(history))


def _render_untrained(path: Path, task: Task, precision: str) -> str:
    n_parameters = count_parameters(task.config, task.sizes).total
    cards = [
        render_stat_card("Parameters", f"{n_parameters:,}", f"vocabulary of {task.config.tokenizer.vocab_size:,}"),
        render_stat_card("Device", str(task.device), precision),
    ]
    return (
        f'<header><p class="eyebrow">Triform <span>/</span> {escape(task.name)}</p>'
        f'<h1>{escape(path.resolve().name)}</h1></header><dl class="tiles">{"".join(cards)}</dl>'
    )


def _render_curves(history: RunHistory) -> str:
    charts = [
        replace(
            chart,
            curves=[replace(curve, points=downsample(curve.points, MAX_CURVE_POINTS)) for curve in chart.curves],
        )
        for chart in headline_charts(history)
    ]
    return f'<div class="charts">{"".join(render_chart(chart, with_script=False) for chart in charts)}</div>'
