"""Convert a notebook with its outputs to a page of the site: Markdown, with the outputs as HTML."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

ANSI_CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a traceback


def write_page(notebook: Path, page: Path) -> None:
    """Write the page of a notebook, with a link that downloads it. The link is added below the title."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = [_render_cell(cell) for cell in cells]
    link = f"[Download this notebook]({notebook.name}){{ download }} and run it: `jupyter lab {notebook.name}`"
    title, _, rest = parts[0].partition("\n\n")
    page.write_text("\n\n".join([title, link, rest, *parts[1:]]) + "\n", encoding="utf-8")


def _render_cell(cell: dict[str, Any]) -> str:
    source = _join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    outputs = "".join(map(_render_output, cell["outputs"]))
    return f"```python\n{source}\n```" + (f'\n\n<div class="notebook-output">{outputs}</div>' if outputs else "")


def _render_output(output: dict[str, Any]) -> str:
    """Return an output as HTML on one line, so that Markdown takes it as one block."""
    data = output.get("data", {})
    if "text/html" in data:
        html = _join(data["text/html"])
    else:
        text = output.get("traceback") or output.get("text") or data.get("text/plain", "")
        html = f"<pre>{escape(ANSI_CODES.sub('', _join(text)))}</pre>"
    # A dollar sign would start a formula.
    return html.replace("\n", "&#10;").replace("$", "&#36;")


def _join(text: str | list[str]) -> str:
    """Return a text of a notebook, which is stored as a string or as lines."""
    return text if isinstance(text, str) else "".join(text)
