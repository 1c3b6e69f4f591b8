"""Build HTML pages that need no network: the document with its style and script, and common elements."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from html import escape
from importlib.resources import files
from pathlib import Path

from triform.io.files import write_text


def render_html_page(title: str, body: str, version: str) -> str:
    """Build the whole document.

    Its content security policy blocks every request, and every script except the one of the page.
    """
    theme = files("triform.explain").joinpath("theme.css").read_text(encoding="utf-8")
    assets = files("triform.reporting")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)} · Triform</title>'
        f"<style>{theme}{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>{escape(version)}</footer><script>{script}</script></body></html>\n"
    )


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


def write_page(path: Path, text: str) -> Path:
    """Write a page atomically, so that readers never see a part of it."""
    write_text(path, text)
    return path
