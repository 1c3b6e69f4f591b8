"""Show objects of Triform in notebooks: as HTML with its own style, or as a whole page in a frame.

The style applies only inside of an output, and rules of the notebook do not apply there. Colours follow the theme
of JupyterLab, VS Code, Colab or the documentation site, and elsewhere the colour scheme of the system.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape

from triform.html.style_sheets import read_style_sheet, theme_variables

CSS_CLASS = "triform-output"
# How an ancestor of an output says which theme is in use.
LIGHT_THEMES = '[data-jp-theme-light="true"], .vscode-light, [data-md-color-scheme="default"], [theme="light"]'
DARK_THEMES = '[data-jp-theme-light="false"], .vscode-dark, [data-md-color-scheme="slate"], [theme="dark"]'

MAX_FRAME_HEIGHT = 1300  # in pixels; a longer page scrolls in its frame
ON_FRAME_LOAD = (
    "const frame = this, sendTheme = () =>"
    " frame.contentWindow?.postMessage(getComputedStyle(frame).colorScheme, '*');"
    " window.addEventListener('message', event => {"
    " if (event.source === frame.contentWindow && event.data.height > 0)"
    f" frame.style.height = Math.min(event.data.height, {MAX_FRAME_HEIGHT}) + 'px' }});"
    " const observer = new MutationObserver(sendTheme);"
    " for (const node of [document.documentElement, document.body]) observer.observe(node, {attributes: true});"
    " sendTheme()"
)


def render_output(body: str) -> str:
    """Return HTML as the `_repr_html_` of an object. The body is inserted as HTML.

    A surrogate, which a damaged text may contain, is replaced, because a notebook cannot store it.
    """
    encodable = body.encode("utf-8", "replace").decode("utf-8")
    return f'<div class="{CSS_CLASS}"><style>{notebook_style()}</style>{encodable}</div>'


def render_frame(page: str, title: str) -> str:
    """Return a whole HTML page as the `_repr_html_` of an object.

    The page is in a frame of a separate origin. Its scripts run, and can reach neither the notebook nor its files.
    When it is loaded, and when the theme of the notebook changes, the frame sends it the theme. The frame takes the
    height that the page answers.

    Args:
        page: The page.
        title: The title of the frame, for screen readers.
    """
    attributes = f'sandbox="allow-scripts" title="{escape(title)}" onload="{escape(ON_FRAME_LOAD)}"'
    return render_output(f'<iframe {attributes} srcdoc="{escape(page)}"></iframe>')


@cache
def notebook_style() -> str:
    """Return the style sheet of an output: the rules of all pages, nested in the class of an output."""
    theme = theme_variables(read_style_sheet("theme.css"))
    light, dark = theme["light"], theme["dark"]
    font = re.findall(r"\sfont: ([^}]*)\}", read_style_sheet("theme.css"))[0]
    rules = "".join(read_style_sheet(name) for name in ("reset.css", "report.css", "notebook.css"))
    # Three times the class, so that these rules have precedence over those of the notebook.
    style = (
        f".{CSS_CLASS}.{CSS_CLASS}.{CSS_CLASS} {{ {light}; color: var(--ink); font: {font};"
        f" @media (prefers-color-scheme: dark) {{ {dark} }} :is({LIGHT_THEMES}) & {{ {light} }}"
        f" :is({DARK_THEMES}) & {{ {dark} }} {rules} }}"
    )
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
