"""Elements of HTML pages and of outputs in notebooks: sections, tables, cards, notices, texts and bars."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape

MAX_BARS = 10  # of a bar chart; the others are counted


def render_section(title: str, content: str) -> str:
    """Return a section with a heading. The content is inserted as HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def render_table(header: Iterable[str], rows: Iterable[str], *, numeric: Collection[int] = ()) -> str:
    """Return a table. The rows are inserted as HTML, and the columns in `numeric` are aligned to the right."""
    columns = ((escape(name), " class=num" if i in numeric else "") for i, name in enumerate(header))
    header_cells = "".join(f'<th scope="col"{attribute}>{name}</th>' for name, attribute in columns)
    html = f"<table><thead><tr>{header_cells}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="card wide">{html}</div>'


def render_stat_card(name: str, value: str, note: str = "", extra: str = "") -> str:
    """Return a card with one number in large type. `extra` is inserted as HTML."""
    css_class = " long" if len(value) > 10 else ""
    return (
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="value{css_class}">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}{extra}</dd></div>'
    )


def render_notices(title: str, texts: Iterable[str], *, warning: bool = False) -> str:
    """Return a box that lists each text once, or an empty string without texts. Warnings are coloured."""
    items = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(texts))
    css_class = "warnings" if warning else "card"
    return (
        f'<section class="notices {css_class}"><h2>{escape(title)}</h2><ul>{items}</ul></section>\n'
        if items
        else ""
    )


def render_text_cell(text: str) -> str:
    """Return a table cell with a text as it is. A long text scrolls in its cell."""
    content = escape(text) or '<i class="empty">(empty)</i>'
    return f'<td class="text" dir="auto"><div>{content}</div></td>'


def render_bars(probabilities: Mapping[str, float]) -> str:
    """Return one bar for each probability, the largest first."""
    ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])
    bars = [
        f'<b dir="auto">{escape(name)}</b><svg class="tone-a" aria-hidden="true">'
        f'<rect class="bar" x="0" y="8" width="{100 * value:.2f}%" height="14" rx="3"/></svg>'
        f'<span class="value">{100 * value:.2f} %</span>'
        for name, value in ranked[:MAX_BARS]
    ]
    n_more = len(ranked) - MAX_BARS
    more = f'<p class="lead">and {n_more} more</p>' if n_more > 0 else ""
    return f'<div class="strips">{"".join(bars)}</div>{more}'
