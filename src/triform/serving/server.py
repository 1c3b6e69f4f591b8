"""What the handlers of a server share."""

from __future__ import annotations

from dataclasses import dataclass

from triform.serving.options import ServerOptions


@dataclass(frozen=True)
class Server:
    """The state of a running server."""

    options: ServerOptions
