"""A griffe extension for the site: the examples of docstrings are shown as code, under a heading."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

PARAGRAPH = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def mark_examples(text: str) -> str:
    """Return a docstring in which each example is in a section "Examples", which mkdocstrings knows.

    >>> mark_examples("Add one.\\n\\n>>> add(1)\\n2")
    'Add one.\\n\\nExamples:\\n    >>> add(1)\\n    2'
    """
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return PARAGRAPH.sub(lambda match: "Examples:\n    " + match.group().replace("\n", "\n    "), text)


class DocstringExamples(Extension):
    """Change the docstrings before they are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = mark_examples(obj.docstring.value)
