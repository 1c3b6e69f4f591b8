"""Whatever clients send and whatever happens to the run folders, the server answers with a reason and stays up."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from triform.serving import ServerOptions

POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST_IN_CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def folder(runs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the runs that the tests damage."""
    return shutil.copytree(runs_folder, tmp_path_factory.mktemp("robustness") / "runs")


@pytest.fixture(scope="module")
def address(start_server: Any, folder: Path) -> Iterator[str]:
    with start_server(ServerOptions(folder=folder, device="cpu", page=True)) as address:
        yield address


def send(method: str, url: str, **request: Any) -> httpx.Response:
    return httpx.request(method, url, timeout=60, **request)  # the machine may be busy


@pytest.fixture(autouse=True)
def _server_is_still_up(address: str) -> Iterator[None]:
    yield
    assert send("GET", f"{address}/health").status_code == 200


def send_bytes(address: str, content: bytes, *, close: bool = False) -> bytes:
    """Return what the server answers to these bytes."""
    with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), timeout=60) as connection:
        connection.sendall(content)
        if close:
            return b""
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # a browser that expects TLS
        (b"nonsense\r\n\r\n", 400),
        (b"INVENTED / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X-Header: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000 + b"\r\n", 431),
        (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
        (POST_IN_CHUNKS + b"zz\r\n", 400),
        (POST_IN_CHUNKS + b"1\r\nx\r\n" * 10_000, 413),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000, 429),
    ],
)
def test_what_is_no_request_or_too_much_of_one_is_refused(address: str, content: bytes, status: int) -> None:
    head = send_bytes(address, content).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert {b"connection: close", b"x-content-type-options: nosniff"} <= set(head.split(b"\r\n"))


def test_a_client_that_leaves_while_it_sends_its_body_is_forgotten(address: str) -> None:
    send_bytes(address, POST + b'Content-Length: 500\r\n\r\n{"inputs": "', close=True)


@pytest.mark.parametrize(
    "path", ["/%", "/%ff", "/%00", "/v1/models/%2e%2e%2f%2e%2e", "//", "/v1/models/a\u20ac", "/a?%ff"]
)
def test_a_strange_path_is_not_found(address: str, path: str) -> None:
    answer = send("GET", address + path)
    assert answer.status_code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "DELETE"])
def test_a_method_that_a_route_does_not_have_is_refused(address: str, method: str) -> None:
    answer = send(method, f"{address}/v1/completions")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert method in answer.json()["error"]["message"]


def test_a_request_that_takes_too_long_is_given_up(start_server: Any, runs_folder: Path) -> None:
    with start_server(ServerOptions(folder=runs_folder, device="cpu", timeout=0.5)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        settings: dict[str, Any] = {
            "model": "verses",
            "prompt": "amber birch",
            "max_tokens": 1_000_000,
            "temperature": 0,
        }
        with pytest.raises(openai.InternalServerError, match=r"time limit of 0\.5 s") as caught:
            client.completions.create(**settings)
        assert caught.value.status_code == 504
        with pytest.raises(openai.APIError, match=r"time limit of 0\.5 s"):
            list(client.completions.create(**settings, stream=True))


def test_a_damaged_run_is_reported_until_it_is_repaired(address: str, folder: Path) -> None:
    file = folder / "reviews" / "model.safetensors"
    content, body = file.read_bytes(), {"inputs": "amber", "model": "reviews"}
    assert send("POST", f"{address}/predict", json=body).status_code == 200
    for damaged in (content[: len(content) // 2], b"", content[:-4] + b"\0\0\0\0"):
        file.write_bytes(damaged)
        answer = send("POST", f"{address}/predict", json=body)
        assert answer.status_code == 503
        assert answer.json()["error_type"] == "Backend"
        assert "reviews" in answer.json()["error"]
        assert "Traceback" not in answer.text
    file.write_bytes(content)
    assert send("POST", f"{address}/predict", json=body).status_code == 200


def test_a_deleted_run_is_unknown_and_the_others_stay(address: str, folder: Path) -> None:
    body = {"inputs": "amber", "model": "seeds/seed-2"}
    assert send("POST", f"{address}/predict", json=body).status_code == 200
    shutil.rmtree(folder / "seeds" / "seed-2")
    answer = send("POST", f"{address}/predict", json=body)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("there is no model 'seeds/seed-2'")
    assert send("POST", f"{address}/predict", json={**body, "model": "seeds/seed-1"}).status_code == 200


def test_a_run_without_a_trained_model_says_so(address: str, folder: Path) -> None:
    shutil.copytree(folder / "verses", folder / "training")
    (folder / "training" / "model.safetensors").unlink()
    answer = send("POST", f"{address}/v1/completions", json={"model": "training", "prompt": "amber"})
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].endswith("has no trained model yet")


def test_a_run_served_by_name_that_is_deleted_is_reported(start_server: Any, folder: Path) -> None:
    run = shutil.copytree(folder / "french", folder.parent / "en-fr")
    body = {"q": "amber", "source": "en", "target": "fr"}
    with start_server(ServerOptions(runs={"en-fr": run}, device="cpu")) as address:
        assert send("POST", f"{address}/translate", json=body).status_code == 200
        shutil.rmtree(run)
        answer = send("POST", f"{address}/translate", json=body)
    assert answer.status_code == 503
    assert answer.json()["error"] == f"{run}: no such run folder"


def test_requests_that_a_page_of_another_site_sends_reach_no_model(address: str) -> None:
    form = {"Content-Type": "text/plain", "Origin": "https://evil.example"}
    assert send("POST", f"{address}/predict", content='{"inputs": "amber"}', headers=form).status_code == 403
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert send("GET", f"{address}/v1/models", headers=rebound).status_code == 403


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="on Windows, links need a right")
@pytest.mark.parametrize("name", [".studio", ".studio/uploads", ".studio/jobs"])
def test_nothing_is_written_or_deleted_through_links_in_the_folder_of_the_studio(
    start_server: Any, runs_folder: Path, tmp_path: Path, name: str
) -> None:
    ignored = shutil.ignore_patterns(".studio")  # of the tests before
    runs = Path(shutil.copytree(runs_folder, tmp_path / "runs", ignore=ignored))
    outside = tmp_path / "outside"
    for old in (outside / "photos", outside / "uploads" / "photos"):
        old.mkdir(parents=True)
        os.utime(old, (0, 0))  # uploads without a run are deleted after a day
    (runs / name).parent.mkdir(exist_ok=True)
    (runs / name).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    with start_server(ServerOptions(folder=runs, device="cpu", page=True)) as address:
        answers = {
            "jobs": send("GET", f"{address}/api/jobs"),
            "uploads": send("POST", f"{address}/api/uploads?name=rows.csv", content=b"good,a day\n"),
        }
        for kind, answer in answers.items():
            assert answer.status_code == (503 if name in (".studio", f".studio/{kind}") else 200)
            assert answer.status_code == 200 or f"{runs / name} is a link" in answer.json()["error"]
        assert send("GET", f"{address}/api/runs").json()["runs"]
    assert sorted(outside.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
def test_pipes_among_the_files_of_the_studio_are_not_waited_for(address: str, folder: Path) -> None:
    for name in (".studio/jobs/0.json", ".studio/uploads/0123456789abcdef/upload.json", "a/b/seed-1/config.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)
    assert send("GET", f"{address}/api/jobs").json()["jobs"] == []
    assert send("POST", f"{address}/api/uploads?name=rows.csv", content=b"good,a day\n").status_code == 200
    runs = {run["id"]: run for run in send("GET", f"{address}/api/runs").json()["runs"]}
    assert "config.toml is a pipe" in runs["a/b/seed-1"]["error"]
    shutil.rmtree(folder / "a")
