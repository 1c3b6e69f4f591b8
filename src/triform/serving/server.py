"""What the handlers of a server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from triform.serving.models import ModelRegistry
from triform.serving.options import ServerOptions


@dataclass(frozen=True)
class Server:
    """The state of a running server.

    Attributes:
        options: What the server was started with.
        models: The runs that it has.
        stopping: Set when the server stops. A response without an end, such as the tail of a file, ends then.
    """

    options: ServerOptions
    models: ModelRegistry
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def create_server(options: ServerOptions) -> Server:
    """Return the state of a server that has not started."""
    return Server(options, ModelRegistry(options))
