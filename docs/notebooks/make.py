"""Make the notebooks from their plain sources, run them, and store their outputs.

    python docs/notebooks/make.py            # all of them
    python docs/notebooks/make.py NAME ...   # only these, without a suffix

NAME.py is the source: `# %%` starts a cell of code, and `# %% [markdown]` a cell of text. It is short, can be
checked and reviewed, and editors open it as a notebook too. NAME.ipynb is made from it and contains outputs,
because the site shows them and running a notebook takes a minute or two. A test compares the cells of both.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
CELL_START = re.compile(r"^# %%( \[markdown\])?$", re.MULTILINE)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources() -> list[Path]:
    """Return the sources of all notebooks."""
    return sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)


def read_cells(source: Path) -> list[tuple[str, str]]:
    """Return the kind and the text of each cell."""
    _, *parts = CELL_START.split(source.read_text(encoding="utf-8"))
    cells = []
    for is_markdown, text in zip(parts[::2], parts[1::2], strict=True):
        text = text.strip("\n")
        lines = (line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        cells.append(("markdown", "\n".join(lines)) if is_markdown else ("code", text))
    return cells


def build_notebook(source: Path) -> dict[str, Any]:
    """Return the notebook without outputs."""
    cells: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(read_cells(source), start=1):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def run_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run all cells in a kernel, in an empty folder, and return the notebook with their outputs."""
    import nbformat
    from nbclient import NotebookClient

    node = nbformat.from_dict(notebook)
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(node, timeout=1800, resources=resources, coalesce_streams=True).execute()
    for cell in node.cells:
        cell.metadata = {}  # when it was run
    return json.loads(nbformat.writes(node).replace(f"{folder}/", ""))


def main() -> int:
    """Make the notebooks that are named, or all of them."""
    parser = argparse.ArgumentParser(description="Make the notebooks from their sources, with outputs.")
    parser.add_argument("names", nargs="*", help="names of notebooks without a suffix; the default is all")
    names = parser.parse_args().names
    for source in sources():
        if names and source.stem not in names:
            continue
        started = time.monotonic()
        text = json.dumps(run_notebook(build_notebook(source)), indent=1, ensure_ascii=False) + "\n"
        source.with_suffix(".ipynb").write_text(text, encoding="utf-8")
        print(f"{source.stem}: {time.monotonic() - started:.0f} s, {len(text) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
