"""Read the style sheets of this package: the colours of all pages, the report, and outputs in notebooks."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def read_style_sheet(name: str) -> str:
    """Return the text of a style sheet, such as "theme.css"."""
    return files("triform.html").joinpath(name).read_text(encoding="utf-8")


def theme_variables(style: str) -> dict[str, str]:
    """Return the variables that a style sheet sets for the light and for the dark colour scheme."""
    dark_rule = r"@media screen and \(prefers-color-scheme: dark\) \{ :root \{([^}]*)\}"
    light, dark = re.findall(r"^:root \{([^}]*)\}", style, re.MULTILINE), re.findall(dark_rule, style)
    return {
        "light": "; ".join([*light, "color-scheme: light"]),
        "dark": "; ".join([*light, *dark, "color-scheme: dark"]),
    }


def selectable_themes(style: str) -> str:
    """Return rules that apply the variables of a theme if the attribute `data-theme` of the page names it."""
    variables = theme_variables(style)
    return "".join(f':root[data-theme="{name}"] {{ {rules} }}\n' for name, rules in variables.items())
