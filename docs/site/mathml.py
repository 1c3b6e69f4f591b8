"""A Markdown extension for the site: formulas between dollar signs become MathML, which needs no script."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# GitHub's rules: no space inside the dollar signs of a formula in a line, and no digit or letter after it.
BLOCK = r"\$\$(.+?)\$\$"
INLINE = r"(?<![\\$\w])\$(?=[^\s$])([^$\n]*[^\s$\\]|[^\s$\\])\$(?![$\w])"


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, display: str) -> None:
        super().__init__(pattern)
        self.compiled_re = re.compile(pattern, re.DOTALL)
        self.display = display

    def handleMatch(self, match: re.Match[str], data: str) -> tuple[Element | str, int, int]:  # type: ignore[override]  # noqa: N802
        mathml = convert(match.group(1).strip(), display=self.display)
        return self.md.htmlStash.store(mathml), match.start(0), match.end(0)


class _Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # After code (190) and before the backslash of an escaped sign (180).
        md.inlinePatterns.register(_with_markdown(_Formula(BLOCK, "block"), md), "formula-block", 186)
        md.inlinePatterns.register(_with_markdown(_Formula(INLINE, "inline"), md), "formula-inline", 185)


def _with_markdown(formula: _Formula, md: Markdown) -> _Formula:
    formula.md = md
    return formula


def makeExtension(**options: Any) -> Extension:  # noqa: N802
    """Return the extension; Markdown calls this function."""
    return _Formulas(**options)
