"""The app as an ASGI server sees it: routes, errors, limits, and what stops with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from triform.errors import CheckpointError, DataError
from triform.serving import ServerOptions, app
from triform.serving.endpoints import ApiError, Call, Endpoint, error_content


class EchoRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or the error to raise."""

    text: str
    times: int = 1
    error: str = ""


ERRORS: dict[str, Exception] = {
    "run": CheckpointError("the run is damaged"),
    "input": DataError("the text is empty"),
    "status": ApiError(429, "too many requests", headers={"Retry-After": "3"}),
    "bug": ZeroDivisionError("division by zero"),
}


async def echo(call: Call) -> dict[str, object]:
    if error := ERRORS.get(call.body.error):
        raise error
    return {"text": call.body.text * call.body.times}


ECHO = Endpoint(
    method="POST",
    path="/predict",
    handler=echo,
    dialect="text",
    summary="Return the text.",
    request=EchoRequest,
    form=True,
)


@pytest.fixture(scope="module")
def client(connect: Any) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "ENDPOINTS", (*app.operations.ENDPOINTS, ECHO))
        yield connect(ServerOptions(max_body=200))


def test_the_server_says_that_it_is_up(client: TestClient) -> None:
    answer = client.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"text": "a"', "the body is not valid JSON"),
        ("", "the body is not valid JSON"),
        ('{"text": "\\ud800"}', "the body is not valid JSON"),
        ('{"text": ' + "[" * 180, "text: Expected `str`, got `array`"),
        ("[]", "Expected `object`, got `array`"),
        ('{"text": 3}', "text: Expected `str`, got `int`"),
        ('{"times": 3}', "missing parameter: text"),
        ('{"text": "a", "best_of": 3}', "unknown parameter: best_of"),
        ('{"text": "a", "times": 1e99}', "times: Expected `int`, got `float`"),
    ],
)
def test_a_body_that_is_not_as_declared_is_refused_with_the_place(
    client: TestClient, body: str, message: str
) -> None:
    answer = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert answer.json()["error_type"] == "Validation"


def test_a_body_of_another_type_is_refused(client: TestClient) -> None:
    answer = client.post("/predict", content='{"text": "a"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert "Content-Type: application/json" in answer.json()["error"]


def test_a_form_is_accepted_where_the_dialect_has_forms(client: TestClient) -> None:
    assert client.post("/predict", data={"text": "a", "times": "2"}).json() == {"text": "aa"}
    assert client.post("/predict", data={"text": "a", "times": "x"}).status_code == 400
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/predict", content=b"text=%ff\xff", headers=form).status_code == 400


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused_whether_its_length_is_announced_or_not(
    client: TestClient, announced: bool
) -> None:
    content = json.dumps({"text": "a" * 300}).encode()
    stream = content if announced else iter([content[:100], content[100:]])
    answer = client.post("/predict", content=stream, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "200 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        ("run", 503, "the run is damaged"),
        ("input", 400, "the text is empty"),
        ("status", 429, "too many requests"),
        ("bug", 500, "internal error; see the log of the server"),
    ],
)
def test_an_error_has_a_status_and_one_sentence(client: TestClient, error: str, status: int, message: str) -> None:
    answer = client.post("/predict", json={"text": "a", "error": error})
    assert (answer.status_code, answer.json()["error"]) == (status, message)
    assert answer.headers.get("Retry-After") == ("3" if error == "status" else None)
    assert client.post("/predict", json={"text": "still up"}).json() == {"text": "still up"}


@pytest.mark.parametrize(("path", "method", "status"), [("/nowhere", "GET", 404), ("/predict", "GET", 405)])
def test_an_unknown_route_is_answered_in_json(client: TestClient, path: str, method: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert path in answer.json()["error"]
    assert ("error_type" in answer.json()) == (path == "/predict")


def test_each_dialect_has_its_own_shape_of_errors() -> None:
    error = ApiError(400, "text: Expected `str`", param="text")
    assert error_content("openai", error)["error"] == {
        "message": "text: Expected `str`",
        "type": "invalid_request_error",
        "param": "text",
        "code": None,
    }
    assert error_content("text", error) == {"error": "text: Expected `str`", "error_type": "Validation"}
    assert error_content("translate", error) == {"error": "text: Expected `str`"}
