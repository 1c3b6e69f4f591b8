"""Print the details of an evaluation to the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from triform.formatting import echo, print_table

if TYPE_CHECKING:
    from triform.evaluation.details import DetailTable

MAX_TEXT_CHARACTERS = 200  # of a text; --json has all of it
MAX_LABEL_CHARACTERS = 24
MAX_MATRIX_WIDTH = 100  # characters; the columns of a wider confusion matrix have numbers instead of labels


def print_details(tables: Iterable[DetailTable]) -> None:
    """Print the tables of an evaluation, each with its heading. Long texts are cut."""
    for table in tables:
        echo(f"\n{table.title}")
        if table.kinds.count("text") > 1:
            _print_blocks(table)
        elif table.rows:
            columns = _shorten_columns(table)
            align = "".join("r" if kind == "number" else "l" for kind in table.kinds)
            print_table([columns, *([*map(_shorten_cell, row)] for row in _number_rows(table))], align)
        if table.note:
            echo(table.note)


def shorten_text(text: str, max_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """Return a text on one line, cut to a number of characters.

    >>> shorten_text("A long\\n  story", 9)
    'A long s…'
    """
    line = " ".join(text.split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def _lower(name: str) -> str:
    return name if name in ("F1", "chrF") else name.lower()


def _shorten_cell(cell: str) -> str:
    return shorten_text(cell)


def _has_wide_matrix(table: DetailTable) -> bool:
    widths = [min(len(label), MAX_LABEL_CHARACTERS) + 2 for label in table.columns[1:]]
    return table.name == "confusion" and sum(widths) > MAX_MATRIX_WIDTH


def _shorten_columns(table: DetailTable) -> list[str]:
    if table.name != "confusion":
        return [*map(_lower, table.columns)]
    first, *labels = _lower(table.columns[0]), *table.columns[1:]
    if _has_wide_matrix(table):
        return [first, *map(str, range(1, len(labels) + 1))]
    return [first, *(shorten_text(label, MAX_LABEL_CHARACTERS) for label in labels)]


def _number_rows(table: DetailTable) -> list[list[str]]:
    if not _has_wide_matrix(table):
        return table.rows
    return [[f"{number} {row[0]}", *row[1:]] for number, row in enumerate(table.rows, 1)]


def _print_blocks(table: DetailTable) -> None:
    """Print each row as lines: the numbers on one line, then a line for each text."""
    names = [name for name, kind in zip(table.columns, table.kinds, strict=True) if kind == "text"]
    width = max(map(len, names)) + 2
    for row in table.rows:
        cells = list(zip(table.columns, table.kinds, row, strict=True))
        numbers = [f"{_lower(name)} {cell}" for name, kind, cell in cells if kind != "text"]
        echo(", ".join(numbers))
        for name, kind, cell in cells:
            if kind == "text":
                echo(f"  {name.lower():{width}}{shorten_text(cell) or '(empty)'}")
