"""Write tables and parts that can be folded in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_text_columns: int = 1) -> str:
    """Build a table. The first `n_text_columns` contain text; the other columns are aligned to the right."""
    alignment = ["---"] * n_text_columns + ["---:"] * (len(head) - n_text_columns)
    return "\n".join(f"| {' | '.join(map(_escape_cell, cells))} |" for cells in (head, alignment, *rows))


def fold(summary: str, parts: Sequence[str]) -> list[str]:
    """Put parts of a page behind a line that opens them; return no part if there is none.

    >>> fold("Details", ["a", "b"])
    ['<details markdown="1"><summary>Details</summary>', 'a', 'b', '</details>']
    """
    return [f'<details markdown="1"><summary>{summary}</summary>', *parts, "</details>"] if parts else []


def github_anchor(title: str) -> str:
    """Return the anchor that GitHub generates for a heading.

    >>> github_anchor("What is new, in 0.2?")
    'what-is-new-in-02'
    """
    letters = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return letters.replace(" ", "-")


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")
