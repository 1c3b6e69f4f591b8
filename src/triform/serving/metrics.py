"""Measurements of a server in the text format of Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OTHER_ROUTE = "other"  # the files of the page, and requests that no route answers
ROUTE_KEY = "triform.route"  # where `to_route` writes the path of an endpoint into the scope of a request

Labels = Mapping[str, object]


@dataclass
class Histogram:
    """Counts of values in buckets, each up to a bound, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, or several equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class RequestMetrics:
    """Counts and durations of requests by route."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()  # by route, method and status
        self.seconds: dict[str, Histogram] = {}  # by route
        self.n_running = 0


class MetricsMiddleware:
    """Measures every request until the last byte of its response."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics, start_time, status = self.metrics, time.perf_counter(), 500

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.n_running += 1
        try:
            await self.app(scope, receive, send_and_record)
        finally:
            metrics.n_running -= 1
            route = scope.get(ROUTE_KEY, OTHER_ROUTE)
            method = scope["method"] if route != OTHER_ROUTE else ""  # a client can invent any number of methods
            metrics.counts[route, method, status] += 1
            metrics.seconds.setdefault(route, Histogram(SECONDS_BUCKETS)).observe(time.perf_counter() - start_time)


class PrometheusText:
    """Collects measurements and writes them in the text format of Prometheus."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __str__(self) -> str:
        return "\n".join([*self.lines, ""])

    def add(self, name: str, kind: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        """Add a counter or a gauge.

        Args:
            name: The name, which ends with its unit, or with `_total` for a counter.
            kind: "counter" or "gauge".
            text: What is measured.
            values: The values, each with its labels.
        """
        self._add_head(name, kind, text)
        self.lines += [f"{name}{_format_labels(labels)} {value}" for labels, value in values]

    def add_histograms(self, name: str, text: str, values: Iterable[tuple[Labels, Histogram]]) -> None:
        """Add a histogram for each set of labels."""
        self._add_head(name, "histogram", text)
        for labels, histogram in values:
            cumulative = 0
            for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                cumulative += count
                self.lines.append(f"{name}_bucket{_format_labels({**labels, 'le': bound})} {cumulative}")
            self.lines.append(f"{name}_sum{_format_labels(labels)} {histogram.total}")
            self.lines.append(f"{name}_count{_format_labels(labels)} {cumulative}")

    def _add_head(self, name: str, kind: str, text: str) -> None:
        self.lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _format_labels(labels: Labels) -> str:
    pairs = [f'{name}="{_escape(str(value))}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
