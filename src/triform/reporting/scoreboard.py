"""Write the page of `triform demo`: one row for each task with its result and target, and a summary of each run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from triform import __version__
from triform.formatting import format_duration, format_metric, metric_info, metric_title
from triform.reporting.charts import render_chart
from triform.reporting.pages import render_html_page, render_section, render_stat_card, render_table, write_page
from triform.reporting.run_history import read_history
from triform.reporting.run_report import headline_charts, render_sample_table


@dataclass(frozen=True, kw_only=True)
class ScoreboardRow:
    """One row of the scoreboard: a task, its result on the test set, its target and its report."""

    task: str
    summary: str
    metric: str
    score: float
    target: float
    seconds: float
    report: Path

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the metric is better."""
        return metric_info(self.metric).higher_is_better

    @property
    def reached(self) -> bool:
        """Whether the result is at least as good as the target. NaN never is."""
        return self.score >= self.target if self.higher_is_better else self.score <= self.target


def write_scoreboard(path: Path, rows: Sequence[ScoreboardRow]) -> Path:
    """Write the page of a demo with the metrics, curves and samples of its runs, and links to their reports."""
    n_reached = sum(row.reached for row in rows)
    cards = [
        render_stat_card("Targets reached", f"{n_reached} of {len(rows)}", "tasks"),
        render_stat_card("Training time", format_duration(sum(row.seconds for row in rows)), "for all tasks"),
    ]
    header = ["Task", "Description", "Metric", "Score", "Target", "Reached", "Training time", "Report"]
    table_rows, sections = [], []
    for row in rows:
        link = quote(Path(os.path.relpath(row.report, path.parent)).as_posix())
        sections.append(_render_run_summary(row, f'<a href="{escape(link)}">Open the full report</a>'))
        tone, word = ("good", "✓ yes") if row.reached else ("warn", "✗ no")
        table_rows.append(
            f'<tr><th scope="row">{escape(row.task)}</th><td class="text">{escape(row.summary)}</td>'
            f'<td class="name">{escape(metric_title(row.metric))}</td>'
            f'<td class="num"><b>{format_metric(row.metric, row.score)}</b></td>'
            f'<td class="num">{"≥" if row.higher_is_better else "≤"} {format_metric(row.metric, row.target)}</td>'
            f'<td><span class="pill {tone}">{word}</span></td><td class="num">{format_duration(row.seconds)}</td>'
            f'<td><a href="{escape(link)}">{escape(row.task)} report</a></td></tr>'
        )
    body = (
        '<header><p class="eyebrow">Triform</p><h1>Demo results</h1>'
        '<p class="lead">One Transformer in three forms, each trained from scratch.</p></header>'
        f'<dl class="tiles">{"".join(cards)}</dl>{render_table(header, table_rows, numeric={3, 4, 6})}'
    )
    return write_page(path, render_html_page("Scoreboard", body + "".join(sections), f"Triform {__version__}"))


def _render_run_summary(row: ScoreboardRow, link: str) -> str:
    """Return the section of one task: its curves and a few of its samples."""
    history = read_history(row.report.parent)
    curves = "".join(map(render_chart, headline_charts(history)))
    lead = f'<p class="lead">{escape(row.summary)} · {link}</p>'
    return render_section(
        row.task.capitalize(), f'{lead}<div class="charts">{curves}</div>{render_sample_table(history, 4)}'
    )
