"""Put the endpoints of all dialects together as an ASGI app."""

from __future__ import annotations

from starlette.applications import Starlette

from triform.serving import operations
from triform.serving.endpoints import Endpoint, to_route
from triform.serving.options import ServerOptions
from triform.serving.page_files import page_routes
from triform.serving.server import Server

ENDPOINTS: tuple[Endpoint, ...] = (*operations.ENDPOINTS,)


def create_app(options: ServerOptions) -> Starlette:
    """Return an ASGI app that serves runs.

    Any ASGI server can run it: `uvicorn.run(create_app(ServerOptions(runs={"reviews": Path("runs/reviews")})))`.
    """
    server = Server(options)
    routes = [to_route(endpoint, server) for endpoint in ENDPOINTS]
    return Starlette(routes=routes + page_routes() if options.page else routes)
