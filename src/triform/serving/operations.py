"""Routes for those who operate a server: whether it is up, and its measurements."""

from __future__ import annotations

import msgspec

from triform import __version__
from triform.serving.endpoints import Call, Endpoint


class Health(msgspec.Struct, kw_only=True):
    """The server is up."""

    status: str
    version: str


async def health(call: Call) -> Health:
    """Answer without using a model."""
    return Health(status="ok", version=__version__)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/health",
        handler=health,
        dialect="operations",
        summary="Say whether the server is up.",
        response=Health,
    ),
)
