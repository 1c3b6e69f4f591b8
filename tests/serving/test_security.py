"""Who may use a server: tokens, host names, other sites; and the headers of every response."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.errors import ConfigError
from triform.serving import ServerOptions, create_app
from triform.serving.security import generate_token, is_loopback

TOKEN = "a-secret-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def local(connect: Any) -> TestClient:
    return connect(ServerOptions(page=True))


@pytest.fixture(scope="module")
def protected(connect: Any) -> TestClient:
    return connect(ServerOptions(page=True, host="0.0.0.0", token=TOKEN, allowed_hosts=("models.example",)))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:8000", "[::1]:80", "LOCALHOST", "localhost."]
)
def test_requests_to_this_machine_are_answered(local: TestClient, host: str) -> None:
    assert local.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7", "", "[::1", "localhost@evil"]
)
def test_requests_to_another_host_name_are_refused(local: TestClient, host: str) -> None:
    answer = local.get("/health", headers={"Host": host})
    assert answer.status_code == 403
    assert "--allow-host" in answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "status"), [("192.168.0.7:80", 200), ("models.example", 200), ("evil.example", 403)]
)
def test_a_server_on_another_address_accepts_addresses_and_allowed_names(
    protected: TestClient, host: str, status: int
) -> None:
    assert protected.get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1:8000"}, 200),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a link to the page
    ],
)
def test_requests_from_pages_of_other_sites_are_refused(
    local: TestClient, headers: dict[str, str], status: int
) -> None:
    answer = local.get("/health", headers=headers)
    assert answer.status_code == status
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_token_is_required_for_everything_but_the_files_of_the_page(protected: TestClient) -> None:
    assert protected.get("/").status_code == 200
    assert protected.get("/page/app.js").status_code == 200
    assert protected.get("/health").status_code == 200
    for path in ("/metrics", "/openapi.json", "/v1/models", "/nowhere", "/page"):
        answer = protected.get(path, follow_redirects=False)
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert protected.get("/nowhere", headers=AUTHORIZED).status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_a_wrong_token_is_refused(protected: TestClient, header: str) -> None:
    answer = protected.get("/nowhere", headers={"Authorization": header.encode()})
    assert answer.status_code == 401
    assert TOKEN not in answer.text


def test_every_response_has_the_headers_that_restrict_browsers(local: TestClient) -> None:
    for path in ("/", "/health", "/nowhere"):
        headers = local.get(path).headers
        assert "default-src" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
    assert local.get("/health").headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "a server on 0.0.0.0 can be reached by other machines and needs a token"),
        ({"host": "192.168.0.7"}, "needs a token"),
        ({"token": "two words"}, "the token may only contain"),
        ({"token": "clé"}, "the token may only contain"),
    ],
)
def test_no_server_is_open_to_other_machines_without_a_token(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_app(ServerOptions(**options))  # type: ignore[arg-type]


def test_tokens_are_random_and_addresses_of_other_machines_are_known() -> None:
    assert len({generate_token() for _ in range(10)}) == 10
    assert len(generate_token()) >= 32
    hosts = ("127.0.0.1", "::1", "localhost", "127.8.9.1", "0.0.0.0", "::", "10.0.0.1", "a.example")
    assert [host for host in hosts if is_loopback(host)] == ["127.0.0.1", "::1", "localhost", "127.8.9.1"]
