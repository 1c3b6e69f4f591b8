"""No request that schemathesis draws from the description of the API, valid or invalid, makes the server fail."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from starlette.applications import Starlette
from starlette.testclient import TestClient

from triform.serving import ServerOptions, create_app

LOCAL = "http://127.0.0.1:8000"
EXAMPLES = 12  # of each route and kind
# What half of the requests contain, so that they reach a model.
USABLE = {"model": None, "source": "en", "target": "fr", "q": "amber", "inputs": "amber", "input": "amber", "n": 1}


def use_a_model(body: Any) -> None:
    """Change a request so that it is for a model of the server and takes a moment."""
    if isinstance(body, dict):
        body.update({name: value for name, value in USABLE.items() if name in body})
        if "max_tokens" in body:
            body["max_tokens"] = 3


@pytest.fixture(scope="module")
def app(runs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Starlette:
    folder = shutil.copytree(runs_folder, tmp_path_factory.mktemp("schema") / "runs")
    shutil.rmtree(folder / "seeds")
    (folder / "french").rename(folder / "en-fr")
    options = ServerOptions(folder=folder, page=True, read_only=True, device="cpu", allowed_hosts=("testserver",))
    return create_app(options)


@pytest.fixture(scope="module")
def schema(app: Starlette) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.fixture(scope="module")
def client(app: Starlette) -> TestClient:
    return TestClient(app, base_url=LOCAL)


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    return dict(client.get("/openapi.json").json())


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_makes_the_server_fail_or_gets_another_type_of_answer(schema: Any, mode: GenerationMode) -> None:
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    for operation in (result.ok() for result in schema.get_all_operations()):
        if mode is GenerationMode.NEGATIVE and not operation.body and not operation.query:
            continue  # any text is a valid part of a path

        @settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            if mode is GenerationMode.POSITIVE and sum(statuses.values()) % 2:
                use_a_model(case.body)
            answer = case.call()
            statuses[answer.status_code] += 1
            media_type = answer.headers["content-type"][0].partition(";")[0]
            types = case.operation.definition.raw["responses"]["200"]["content"]
            if answer.status_code >= 500 or (answer.status_code == 200 and media_type not in types):
                failures.append(f"{case.operation.label} {case.body} {case.query}: {media_type} {answer.text}")

        send()
    assert not failures
    assert statuses[400] > EXAMPLES
    assert statuses[200] > EXAMPLES or mode is GenerationMode.NEGATIVE


EN_FR = {"source": "en", "target": "fr"}


@pytest.mark.parametrize(
    ("path", "parameter", "others"),
    [
        ("/predict", "inputs", {}),
        ("/embed", "inputs", {}),
        ("/translate", "q", EN_FR),
        ("/detect", "q", {}),
        ("/api/attention", "text", {"model": "reviews"}),
        ("/api/attribution", "text", {"model": "reviews"}),
        ("/v1/completions", "stop", {"prompt": "amber"}),
    ],
)
def test_texts_that_are_refused_as_empty_are_invalid_in_the_description(
    client: TestClient, description: dict[str, Any], path: str, parameter: str, others: dict[str, Any]
) -> None:
    def is_valid(value: Any) -> bool:
        content = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        document = {**content["schema"], "components": description["components"]}
        return bool(Draft202012Validator(document).is_valid({**others, parameter: value}))

    def is_answered(value: Any) -> bool:
        return client.post(path, json={**others, parameter: value}).status_code == 200

    values: list[Any] = ["amber", "", " "]
    if path != "/detect" and not path.startswith("/api/"):
        values += [["amber"], [], [""], ["amber", ""]]
    if path == "/predict":
        values = [*values[:-1], [["amber"], ["birch"]], [[]], [["amber"], [""]], [["amber", "birch"]]]
    assert [is_valid(value) for value in values] == [is_answered(value) for value in values]
    assert is_valid("amber")
    assert not is_valid("")


def test_prompts_without_tokens_and_empty_files_are_invalid_in_the_description(
    client: TestClient, description: dict[str, Any]
) -> None:
    content = description["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    validator = Draft202012Validator({**content["schema"], "components": description["components"]})
    for prompt, status in (
        ("", 200),
        ([""], 200),
        ([1], 200),
        ([[1], [2]], 200),
        ([], 400),
        ([[]], 400),
        ([-1], 400),
    ):
        assert client.post("/v1/completions", json={"prompt": prompt}).status_code == status
        assert validator.is_valid({"prompt": prompt}) == (status == 200)
    upload = description["paths"]["/api/uploads"]["post"]["requestBody"]["content"]["application/octet-stream"]
    assert not Draft202012Validator(upload["schema"]).is_valid("")


def test_streams_are_described(start_server: Any, runs_folder: Path, description: dict[str, Any]) -> None:
    requests = (
        ("POST", "/v1/completions", {"json": {"prompt": "amber", "stream": True}}),
        ("GET", "/api/runs/{id}/metrics", {"headers": {"Accept": "text/event-stream"}}),
    )
    with start_server(ServerOptions(folder=runs_folder, device="cpu", page=True)) as address:
        for method, path, request in requests:
            url = address + path.replace("{id}", "reviews")
            with httpx.stream(method, url, timeout=60, **request) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
            content = description["paths"][path][method.lower()]["responses"]["200"]["content"]
            assert content.keys() == {"application/json", "text/event-stream"}


def test_a_refused_method_is_answered_with_all_methods_of_the_path(
    client: TestClient, description: dict[str, Any]
) -> None:
    for path, operations in description["paths"].items():
        address = path.replace("{id}", "no-run")
        for method in ("PUT", "OPTIONS"):
            answer = client.request(method, address)
            assert answer.status_code == 405
            allowed = answer.headers["Allow"].split(", ")
            assert {name.upper() for name in operations} <= set(allowed), path
            assert all(client.request(name, address).status_code != 405 for name in allowed), path
    assert client.put("/api/runs/no-run").headers["Allow"] == "DELETE, GET, HEAD"
    assert client.put("/api/jobs").headers["Allow"] == "GET, HEAD, POST"
