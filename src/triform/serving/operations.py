"""Routes for those who operate a server: whether it is up, its measurements, and its description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from triform import __version__
from triform.serving.endpoints import Call, Endpoint
from triform.serving.metrics import BATCH_SIZE_BUCKETS, PROMETHEUS_TYPE, Histogram, PrometheusText
from triform.serving.models import ServedModel
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
    add_model_metrics(text, call.server.models.loaded)
    return Response(str(text), media_type=PROMETHEUS_TYPE)


def add_model_metrics(text: PrometheusText, models: Sequence[ServedModel]) -> None:
    """Add the measurements of the loaded models."""
    stats = [({"model": model.name}, model.worker.stats) for model in models]
    text.add(
        "triform_queue_length",
        "gauge",
        "Requests that wait for a model.",
        [(labels, model_stats.queued) for labels, model_stats in stats],
    )
    text.add(
        "triform_running_rows",
        "gauge",
        "Texts that a model computes at the moment.",
        [(labels, model_stats.running) for labels, model_stats in stats],
    )
    text.add(
        "triform_generated_tokens_total",
        "counter",
        "Tokens that a model has generated.",
        [(labels, model_stats.n_tokens) for labels, model_stats in stats],
    )
    text.add(
        "triform_generated_tokens_per_second",
        "gauge",
        "Tokens that a model generates in a second, on average since the measurements were last read.",
        [({"model": model.name}, model.measure_token_rate()) for model in models],
    )
    histograms = []
    for labels, model_stats in stats:
        histogram = Histogram(BATCH_SIZE_BUCKETS)
        for size, count in model_stats.batch_sizes.items():
            histogram.observe(size, count)
        histograms.append((labels, histogram))
    text.add_histograms("triform_batch_size_rows", "Texts that a model computed together.", histograms)


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
        other_responses={
            PROMETHEUS_TYPE.partition(";")[0]: "A line for each measurement, as Prometheus reads them."
        },
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
