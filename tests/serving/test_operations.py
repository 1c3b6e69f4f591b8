"""Routes for those who operate a server: measurements that Prometheus reads, and a description of all routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from triform.serving import ServerOptions
from triform.serving.metrics import Histogram, PrometheusText


def read_metrics(client: TestClient) -> dict[str, Any]:
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def find_value(family: Any, name: str, **labels: str) -> float:
    values = [sample.value for sample in family.samples if sample.name == name and sample.labels == labels]
    assert len(values) == 1, (name, labels, family.samples)
    return values[0]


@pytest.fixture
def client(connect: Any) -> TestClient:
    return connect(ServerOptions())


def test_requests_are_counted_by_route_and_status(client: TestClient) -> None:
    for _ in range(3):
        client.get("/health")
    client.get("/nowhere/1")
    client.get("/nowhere/2", headers={"Host": "evil.example"})
    client.request("INVENTED", "/health")
    metrics = read_metrics(client)
    requests, name = metrics["triform_requests"], "triform_requests_total"
    assert find_value(requests, name, route="/health", method="GET", status="200") == 3
    assert find_value(requests, name, route="other", method="", status="404") == 1
    assert find_value(requests, name, route="other", method="", status="403") == 1
    assert find_value(requests, name, route="other", method="", status="405") == 1
    durations = metrics["triform_request_duration_seconds"]
    assert find_value(durations, "triform_request_duration_seconds_count", route="/health") == 3
    assert find_value(durations, "triform_request_duration_seconds_bucket", route="/health", le="+Inf") == 3
    running = metrics["triform_requests_running"]
    assert find_value(running, "triform_requests_running") == 1  # the request for the metrics


def test_models_are_measured(connect: Any, runs_folder: Path) -> None:
    client = connect(ServerOptions(folder=runs_folder, device="cpu"))
    assert read_metrics(client)["triform_queue_length"].samples == []  # nothing is loaded yet
    assert client.post("/v1/completions", json={"prompt": "amber", "max_tokens": 5, "temperature": 0}).is_success
    metrics = read_metrics(client)
    assert find_value(metrics["triform_generated_tokens"], "triform_generated_tokens_total", model="verses") == 5
    rate = "triform_generated_tokens_per_second"
    assert find_value(metrics[rate], rate, model="verses") > 0
    assert find_value(read_metrics(client)[rate], rate, model="verses") == 0
    for name in ("triform_queue_length", "triform_running_rows"):
        assert find_value(metrics[name], name, model="verses") == 0
    sizes, name = metrics["triform_batch_size_rows"], "triform_batch_size_rows_bucket"
    assert find_value(sizes, name, model="verses", le="1") == find_value(sizes, name, model="verses", le="+Inf") > 0


def test_histograms_are_cumulative_and_names_may_contain_anything() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(value)
    text = PrometheusText()
    text.add_histograms("sizes", "Sizes.", [({"model": 'a "b"\n\\c'}, histogram)])
    (family,) = text_string_to_metric_families(str(text))
    buckets = {sample.labels.get("le"): sample.value for sample in family.samples if sample.name == "sizes_bucket"}
    assert buckets == {"1.0": 2, "2.0": 3, "+Inf": 4}
    assert find_value(family, "sizes_sum", model='a "b"\n\\c') == 102


def test_the_description_has_every_route_with_its_types(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {"/health", "/metrics", "/openapi.json"} <= document["paths"].keys()
    assert "/api/runs" not in document["paths"]  # only the studio has these
    health = document["paths"]["/health"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert health == {"$ref": "#/components/schemas/Health"}
    assert "security" not in document


def test_the_description_says_that_a_token_is_required(connect: Any) -> None:
    client = connect(ServerOptions(token="secret"))
    document = client.get("/openapi.json", headers={"Authorization": "Bearer secret"}).json()
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
