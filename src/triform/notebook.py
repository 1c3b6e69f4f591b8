"""Find out whether this process is the kernel of a notebook, and show HTML there that is updated in place.

IPython is never imported: in a kernel it is loaded already, and elsewhere it is not needed.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO


def notebook_shell() -> Any:
    """Return the IPython shell of a notebook kernel, or None outside of one, as in a terminal or a script."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


def message_stream() -> TextIO:
    """Return where messages for the user are printed: standard error, or standard output in a notebook.

    A notebook shows standard error on a red background, as if something had failed.
    """
    return sys.stderr if notebook_shell() is None else sys.stdout


def publish_html(html: str, text: str, display_id: str, *, update: bool) -> None:
    """Show HTML in the output of the running cell of a notebook.

    Args:
        html: The HTML.
        text: What a front end without HTML shows.
        display_id: The name of this output.
        update: Replace the content of the output of this name, instead of adding one.
    """
    shell = notebook_shell()
    if shell is not None:
        data = {"text/html": html, "text/plain": text}
        shell.display_pub.publish(data=data, transient={"display_id": display_id}, update=update)
