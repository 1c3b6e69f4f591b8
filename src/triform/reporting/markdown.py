"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_text_columns: int = 1) -> str:
    """Build a table whose first columns hold text and whose other columns are aligned to the right."""
    alignment = ["---"] * n_text_columns + ["---:"] * (len(head) - n_text_columns)
    return "\n".join(f"| {' | '.join(map(_escape_cell, cells))} |" for cells in (head, alignment, *rows))


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")
