"""Tables of the validations during training, for systems that evaluate several sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduce.result_file import ExperimentResult
from triform.config import TRAIN_SET
from triform.formatting import METRICS, format_duration, format_metric
from triform.reporting.markdown import render_markdown_table


def format_progress(result: ExperimentResult) -> list[str]:
    """Return the table of every variant that evaluated more than one set while it trained."""
    parts = []
    for variant in result["variants"]:
        rows = variant.get("progress", [])
        if rows and len(rows[0]["sets"]) > 1:
            parts += [f"**Training of {variant['name']}**, first seed", _progress_table(rows)]
    return parts


def _progress_table(rows: list[Mapping[str, Any]]) -> str:
    names = sorted(rows[0]["sets"], key=lambda name: name != TRAIN_SET)  # the training set first
    columns = [(name, metric) for name in names for metric in rows[0]["sets"][name]]
    head = [
        "step",
        "epoch",
        "training loss",
        *(f"{name} {METRICS[metric].label}" for name, metric in columns),
        "time",
    ]
    return render_markdown_table(
        head,
        [
            [
                f"{row['step']:,}",
                f"{row['epoch']:.4g}",
                "–" if row["loss"] is None else f"{row['loss']:.4f}",
                *(format_metric(metric, row["sets"][name][metric]) for name, metric in columns),
                format_duration(row["seconds"]),
            ]
            for row in rows
        ],
    )
