"""Write tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_text_columns: int = 1) -> str:
    """Build a table. The first `n_text_columns` contain text; the other columns are aligned to the right."""
    alignment = ["---"] * n_text_columns + ["---:"] * (len(head) - n_text_columns)
    return "\n".join(f"| {' | '.join(map(_escape_cell, cells))} |" for cells in (head, alignment, *rows))


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")
