"""The app as an ASGI server sees it."""

from __future__ import annotations

from starlette.testclient import TestClient

from triform.serving import ServerOptions, create_app


def test_the_server_says_that_it_is_up() -> None:
    answer = TestClient(create_app(ServerOptions())).get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
