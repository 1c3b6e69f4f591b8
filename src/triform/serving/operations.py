"""Routes for those who operate a server: whether it is up, its measurements, and its description."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from triform import __version__
from triform.serving.endpoints import Call, Endpoint
from triform.serving.metrics import PROMETHEUS_TYPE, PrometheusText
from triform.serving.openapi import describe_api


class Health(msgspec.Struct, kw_only=True):
    """The server is up."""

    status: str
    version: str


async def health(call: Call) -> Health:
    """Answer without using a model."""
    return Health(status="ok", version=__version__)


async def show_metrics(call: Call) -> Response:
    """Return measurements of requests and models."""
    text, requests = PrometheusText(), call.server.requests
    text.add(
        "triform_requests_total",
        "counter",
        "Requests that were answered.",
        [
            ({"route": route, "method": method, "status": status}, count)
            for (route, method, status), count in sorted(requests.counts.items())
        ],
    )
    text.add("triform_requests_running", "gauge", "Requests that are being answered.", [({}, requests.n_running)])
    text.add_histograms(
        "triform_request_duration_seconds",
        "Time from the head of a request to the last byte of its response.",
        [({"route": route}, histogram) for route, histogram in sorted(requests.seconds.items())],
    )
    return Response(str(text), media_type=PROMETHEUS_TYPE)


async def show_openapi(call: Call) -> dict[str, Any]:
    """Return the description of all routes."""
    return describe_api(call.server.endpoints, needs_token=bool(call.server.options.token))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/health",
        handler=health,
        dialect="operations",
        summary="Say whether the server is up.",
        response=Health,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=show_metrics,
        dialect="operations",
        summary="Return measurements in the text format of Prometheus.",
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        handler=show_openapi,
        dialect="operations",
        summary="Return this description.",
        response=dict[str, Any],
    ),
)
