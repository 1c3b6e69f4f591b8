"""Build HTML pages that need no network: the document with its style and script, and common elements."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from pathlib import Path

from triform.html.elements import render_notices, render_section, render_stat_card, render_table
from triform.html.style_sheets import read_style_sheet
from triform.io.files import write_text

__all__ = [
    "render_html_page",
    "render_notices",
    "render_section",
    "render_stat_card",
    "render_table",
    "write_page",
]


def render_html_page(title: str, body: str, version: str) -> str:
    """Build the whole document.

    Its content security policy blocks every request, and every script except the one of the page.
    """
    style = read_style_sheet("theme.css") + read_style_sheet("report.css")
    script = files("triform.reporting").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)} · Triform</title>'
        f"<style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>{escape(version)}</footer><script>{script}</script></body></html>\n"
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page atomically, so that readers never see a part of it."""
    write_text(path, text)
    return path
