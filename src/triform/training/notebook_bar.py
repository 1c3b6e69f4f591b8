"""Show the progress of training in the output of a notebook cell, as one bar that is updated in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from uuid import uuid4

from triform.formatting import print_message
from triform.notebook import publish_html

# The style is part of the element: an update replaces all of it, several times a second.
ROW_STYLE = (
    "display:flex;flex-wrap:wrap;align-items:center;gap:2px 14px;font-size:13px;font-variant-numeric:tabular-nums"
)
BAR_STYLE = "flex:0 1 240px;min-width:80px;height:12px"


class NotebookBar:
    """A progress bar with a heading and other texts. Lines are printed below it."""

    def __init__(self) -> None:
        self.display_id = ""  # of the output of the bar; empty until it is shown
        self.state: tuple[str, float, Sequence[str]] = ("", 0.0, ())

    @property
    def is_shown(self) -> bool:
        """Whether the bar was shown."""
        return bool(self.display_id)

    def show(
        self, heading: str, fraction: float, parts: Sequence[str], format_time_left: Callable[[float], str]
    ) -> None:
        """Update the bar. The arguments are those of `TerminalBar.show`."""
        self.state = heading, fraction, parts
        self._publish([format_time_left(time.monotonic()), *parts])

    def print_line(self, text: str) -> None:
        """Print a line below the bar."""
        print_message(text)

    def close(self) -> None:
        """Leave the last state in the notebook, without the time that was left."""
        if self.is_shown:
            self._publish(self.state[2])

    def _publish(self, texts: Sequence[str]) -> None:
        heading, fraction, _ = self.state
        update, self.display_id = self.is_shown, self.display_id or f"triform-{uuid4().hex}"
        texts = [text for text in texts if text]
        spans = "".join(f"<span>{escape(text)}</span>" for text in texts)
        bar = f'<progress max="1" value="{fraction:.4f}" style="{BAR_STYLE}"></progress>'
        html = f'<div style="{ROW_STYLE}"><span>{escape(heading)}</span>{bar}{spans}</div>'
        publish_html(html, "  ".join([heading, *texts]), self.display_id, update=update)
