"""What a client can make a server wait for, read or keep open is bounded; honest clients are served meanwhile."""

from __future__ import annotations

import gzip
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from triform.serving import ServerOptions, create_app, endpoints, inspection
from triform.serving.listen import HttpServer, bind_socket
from triform.serving.server import MAX_UPLOADS

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
AUTHORIZATION = b"Authorization: Bearer secret\r\n"
SERVER_IS_SLOW = 60  # seconds; a busy machine must not fail a test


@pytest.fixture(scope="module")
def address(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("connections")
    options = ServerOptions(folder=folder, page=True, token="secret", max_upload=100_000)
    with start_server(options) as address:
        yield address


def connect(address: str, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(
        (urlsplit(address).hostname, urlsplit(address).port), timeout=SERVER_IS_SLOW
    )
    connection.sendall(content)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return what arrives until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD % (b"/predict", 1_000), 401),
        (HEAD % (b"/predict", 1_000) + b"Origin: http://evil.example\r\n", 403),
        (HEAD % (b"/nowhere", 1_000) + AUTHORIZATION, 404),
        (HEAD % (b"/health", 1_000), 405),
        (HEAD % (b"/predict", 10_000_000) + AUTHORIZATION, 413),
        (HEAD % (b"/api/uploads", 100_001) + AUTHORIZATION, 413),
        (HEAD.replace(b"json", b"xml") % (b"/predict", 1_000) + AUTHORIZATION, 415),
    ],
)
def test_a_refused_request_is_answered_and_its_connection_closed_before_its_body_ends(
    address: str, head: bytes, status: int
) -> None:
    with connect(address, head + b"\r\n" + b" " * 100) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in answer


def test_a_client_reads_why_it_is_refused_although_it_is_still_sending(address: str) -> None:
    with connect(address, HEAD % (b"/predict", 500_000) + b"\r\n") as connection:
        for _ in range(50):
            connection.sendall(b" " * 10_000)
        assert read_all(connection).startswith(b"HTTP/1.1 401 ")


def test_a_refused_request_that_has_arrived_keeps_its_connection(address: str) -> None:
    with httpx.Client(base_url=address, timeout=SERVER_IS_SLOW) as client:
        answer = client.get("/v1/models")
    assert (answer.status_code, answer.headers.get("connection")) == (401, None)


def test_a_body_that_arrives_too_slowly_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "BODY_SECONDS", 0.1)
    for path in (b"/predict", b"/api/uploads?name=a.txt"):
        with connect(address, HEAD % (path, 1_000) + AUTHORIZATION + b"\r\n ") as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_arrives_too_slowly_is_given_up(start_server: Any) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with start_server(ServerOptions(head_timeout=0.1)) as address:
        for content in (b"", request):
            with connect(address, content) as connection:
                assert read_all(connection) == b""
        with connect(address, request + b"\r\n") as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
            connection.sendall(b"\r\n")  # an empty line before the next head, which never comes
            read_all(connection)


def test_beyond_the_bound_on_connections_silent_ones_are_closed(start_server: Any) -> None:
    with start_server(ServerOptions(max_connections=4)) as address, httpx.Client(base_url=address) as client:
        client.get("/health")
        port = client.get("/health").extensions["network_stream"].get_extra_info("client_addr")[1]
        silent = [connect(address) for _ in range(8)]
        assert [read_all(connection) for connection in silent[:5]] == [b""] * 5
        kept = client.get("/health", timeout=SERVER_IS_SLOW)
        assert kept.extensions["network_stream"].get_extra_info("client_addr")[1] == port
        for connection in silent:
            connection.close()


def test_beyond_the_bound_on_connections_none_with_a_running_request_is_closed(
    start_server: Any, runs_folder: Path
) -> None:
    runs = {"m": runs_folder / "verses"}
    body = {"prompt": "amber birch", "max_tokens": 1_000_000, "temperature": 0, "stream": True}
    with (
        start_server(ServerOptions(runs=runs, device="cpu", max_connections=1)) as address,
        httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=SERVER_IS_SLOW) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        with connect(address) as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 503 ")
        assert next(line for line in lines if line).startswith("data: ")


def test_a_request_that_offers_to_upgrade_is_answered_with_its_body(start_server: Any, runs_folder: Path) -> None:
    body = b'{"inputs": "amber"}'
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"  # as Java
    with (
        start_server(ServerOptions(runs={"m": runs_folder / "reviews"}, device="cpu")) as address,
        connect(address, (HEAD % (b"/predict", len(body)) + upgrade + body) * 2) as connection,
    ):
        answers = b""
        while answers.count(b'"score"') < 4:
            answers += connection.recv(65_536)
    assert answers.count(b"HTTP/1.1 200 OK") == 2


def test_a_client_that_disconnects_frees_the_place_of_its_first_request(
    start_server: Any, runs_folder: Path
) -> None:
    body = b'{"prompt": "amber birch", "max_tokens": 1000000, "temperature": 0}'
    options = ServerOptions(runs={"m": runs_folder / "verses"}, device="cpu", max_batch=1)
    with start_server(options) as address:
        with connect(address, (HEAD % (b"/v1/completions", len(body)) + b"\r\n" + body) * 2):
            while "triform_requests_running 2" not in httpx.get(f"{address}/metrics", timeout=60).text:
                pass
        short = {"prompt": "amber birch", "max_tokens": 2}
        assert httpx.post(f"{address}/v1/completions", json=short, timeout=SERVER_IS_SLOW).status_code == 200


@contextmanager
def stoppable_server(options: ServerOptions, drain: float) -> Iterator[tuple[str, Any, HttpServer]]:
    """Yield the address, the state and the server, and wait until it has stopped."""
    app, sock, started = create_app(options), bind_socket("127.0.0.1", 0), threading.Event()
    server = HttpServer(app, started.set, drain)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    assert started.wait(SERVER_IS_SLOW)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}", app.state.server, server
    thread.join(SERVER_IS_SLOW)
    assert not thread.is_alive()


def test_a_server_that_stops_gives_up_unfinished_streams_and_bodies_without_a_traceback(
    runs_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ServerOptions(runs={"m": runs_folder / "verses"}, device="cpu")
    body = {"prompt": "amber birch", "max_tokens": 1_000_000, "temperature": 0, "stream": True}
    with (
        stoppable_server(options, drain=1) as (address, state, server),
        httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=SERVER_IS_SLOW) as answer,
    ):
        lines = answer.iter_lines()  # the response ends with it
        assert next(lines).startswith("data: ")
        with connect(address, HEAD % (b"/v1/completions", 1_000) + b"\r\n{") as half_sent:
            while state.requests.n_running < 2:
                pass
            server.should_exit = True
            assert read_all(half_sent).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in capfd.readouterr().err


def test_a_server_that_stops_gives_up_the_inspection_of_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "MAX_READING_SECONDS", math.inf)
    rows = gzip.compress(b"a sentence\tx\n" * 500_000) * 1_000  # takes hours
    options = ServerOptions(folder=tmp_path, page=True)
    with stoppable_server(options, drain=600) as (address, state, server):
        head = HEAD % (b"/api/uploads?name=rows.tsv.gz", len(rows))
        with connect(address, head + b"\r\n" + rows) as connection:
            while not state.inspecting.borrowed_tokens:
                pass
            server.should_exit = True
            assert read_all(connection).startswith(b"HTTP/1.1 503 ")


def test_few_files_are_uploaded_at_the_same_time(start_server: Any, tmp_path: Path) -> None:
    head = HEAD % (b"/api/uploads?name=a.txt", 6)
    with start_server(ServerOptions(folder=tmp_path, page=True)) as address, ExitStack() as stack:
        others = [stack.enter_context(connect(address, head + b"\r\nab ")) for _ in range(MAX_UPLOADS)]
        while len(list(tmp_path.glob(".studio/uploads/*"))) < MAX_UPLOADS:
            pass
        refused = read_all(stack.enter_context(connect(address, head + b"\r\nab ")))
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in refused
        for other in others:
            other.sendall(b"cd ")
            assert other.recv(65_536).startswith(b"HTTP/1.1 200 ")
        answer = httpx.post(f"{address}/api/uploads?name=a.txt", content="ab cd ", timeout=SERVER_IS_SLOW)
        assert answer.status_code == 200
