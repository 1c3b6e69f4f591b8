"""Put the endpoints of all dialects together as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from triform.serving import (
    attention_api,
    compare_api,
    jobs_api,
    openai_api,
    operations,
    runs_api,
    text_api,
    train_api,
    translate_api,
)
from triform.serving.endpoints import ApiError, Dialect, Endpoint, render_error, to_route
from triform.serving.metrics import MetricsMiddleware
from triform.serving.models import ModelRegistry
from triform.serving.options import ServerOptions
from triform.serving.page_files import page_routes
from triform.serving.security import SecurityMiddleware, check_token_option
from triform.serving.server import Server
from triform.serving.training_jobs import TrainingJobs

ENDPOINTS: tuple[Endpoint, ...] = (
    *openai_api.ENDPOINTS,
    *text_api.ENDPOINTS,
    *translate_api.ENDPOINTS,
    *operations.ENDPOINTS,
    *attention_api.ENDPOINTS,
    *runs_api.ENDPOINTS,
    *compare_api.ENDPOINTS,
    *jobs_api.ENDPOINTS,
    *train_api.ENDPOINTS,
)
DRAIN_SECONDS = 20.0  # for requests that are running when the server stops


def create_app(options: ServerOptions) -> Starlette:
    """Return an ASGI app that serves runs.

    Any ASGI server can run it: `uvicorn.run(create_app(ServerOptions(runs={"reviews": Path("runs/reviews")})))`.

    Raises:
        ConfigError: The options make the server reachable for other machines without a token, or the token cannot
            be sent in a header.
    """
    check_token_option(options)
    endpoints = [endpoint for endpoint in ENDPOINTS if options.page or not endpoint.path.startswith("/api/")]
    server = Server(options, ModelRegistry(options), endpoints, TrainingJobs(options))
    app = Starlette(
        routes=[to_route(endpoint, server) for endpoint in endpoints] + (page_routes() if options.page else []),
        middleware=[
            Middleware(MetricsMiddleware, metrics=server.requests),
            Middleware(SecurityMiddleware, options=options, find_dialect=find_dialect),
        ],
        exception_handlers={HTTPException: _respond_to_http_error},
        lifespan=partial(_lifespan, server),
    )
    app.state.server = server
    return app


@asynccontextmanager
async def _lifespan(server: Server, app: Starlette) -> AsyncIterator[None]:
    """Close the models when the server stops."""
    try:
        yield
    finally:
        server.stopping.set()
        await anyio.to_thread.run_sync(partial(server.models.close, drain=DRAIN_SECONDS))


def find_dialect(path: str) -> Dialect:
    """Return the dialect of a path by its first folder, which is the shape of its errors."""
    first = path.split("/")[:2]
    return next((endpoint.dialect for endpoint in ENDPOINTS if endpoint.path.split("/")[:2] == first), "triform")


async def _respond_to_http_error(http: Request, error: Exception) -> Response:
    """Answer a request to a route that does not exist."""
    assert isinstance(error, HTTPException)
    path = http.url.path
    messages = {
        404: f"there is no route {path}; GET /openapi.json lists the routes",
        405: f"the route {path} has no method {http.method}; GET /openapi.json lists the routes",
    }
    message = messages.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # several routes may have this path, and Starlette names the methods of the first
        routes = [route for route in http.app.routes if route.matches(http.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods}))
    return render_error(find_dialect(path), ApiError(error.status_code, message, headers=headers))
