"""The section of a run's report that shows where the model is wrong, from the details in metrics.jsonl."""

from __future__ import annotations

from html import escape

from triform.evaluation.details import DetailTable, build_tables, count_examples, details_from_dict
from triform.reporting.pages import render_section, render_table
from triform.reporting.run_history import RunHistory, is_finite


def render_details(history: RunHistory) -> str:
    """Return the section with the last details of a run; empty if there are none, or if they are damaged."""
    if not history.events["details"]:
        return ""
    event = history.events["details"][-1]
    try:
        details = details_from_dict(history.task, event["details"])
        tables = "".join(map(_render_table, build_tables(details)))
        n_examples = count_examples(details)
    except (TypeError, KeyError, ValueError, AttributeError, IndexError):  # metrics.jsonl may hold anything
        return ""
    total, unit = history.start.get("valid_examples"), history.start.get("unit", "examples")
    part = f"{n_examples:,} of {total:,}" if is_finite(total) and n_examples < total else f"{n_examples:,}"
    lead = f"The best weights on {part} validation {unit}."
    return render_section("Where the model is wrong", f'<p class="lead">{escape(lead)}</p>{tables}')


def _render_table(table: DetailTable) -> str:
    numeric = [index for index, kind in enumerate(table.kinds) if kind == "number"]
    rows = "".join(_render_row(table, index) for index in range(len(table.rows)))
    html = render_table(table.columns, [rows], numeric=numeric) if table.rows else ""
    note = f'<p class="lead">{escape(table.note)}</p>' if table.note else ""
    return f'<div class="detail {escape(table.name)}"><h3>{escape(table.title)}</h3>{html}{note}</div>'


def _render_row(table: DetailTable, index: int) -> str:
    cells = []
    for column, (cell, kind) in enumerate(zip(table.rows[index], table.kinds, strict=True)):
        if kind == "text":
            text = escape(cell) or '<i class="empty">(empty)</i>'
            cells.append(f'<td class="text" dir="auto"><div>{text}</div></td>')
        elif column == 0 and kind == "label":
            cells.append(f'<th scope="row" dir="auto">{escape(cell)}</th>')
        elif table.shares and column:
            css = f"num shade {'hit' if column - 1 == index else 'error'}"
            share = float(table.shares[index][column - 1])
            cells.append(f'<td class="{css}" style="--share:{share:.3f}">{escape(cell)}</td>')
        else:
            cells.append(f'<td{" class=num" if kind == "number" else ""} dir="auto">{escape(cell)}</td>')
    return f"<tr>{''.join(cells)}</tr>"
