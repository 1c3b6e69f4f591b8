"""The commands `triform serve` and `triform studio`: what they print, how they stop, and what they refuse."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from triform.cli.serve import parse_runs
from triform.cli.server_token import choose_token
from triform.errors import ConfigError
from triform.serving.listen import bind_socket, format_url


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start `triform ARGUMENTS` as a process of its own; what it prints is read through pipes."""
    processes = []

    def run(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "triform", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "BROWSER": "echo opened %s"},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_the_server_prints_its_address_and_answers_running_requests_before_it_stops(
    start: Any, runs_folder: Path
) -> None:
    process = start("serve", f"m={runs_folder / 'verses'}", "--port", 0, "--json", "--page", "--device", "cpu")
    line = json.loads(process.stdout.readline())
    assert set(line) == {"address"}
    address = line["address"]
    assert httpx.get(f"{address}/health", timeout=300).json()["status"] == "ok"
    body = {"prompt": "amber birch", "max_tokens": 500, "temperature": 0}
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=address, timeout=300) as client:
        endless = pool.submit(client.post, "/v1/completions", json={**body, "max_tokens": 1_000_000})
        while "triform_requests_running 2" not in client.get("/metrics").text:
            assert not endless.done()
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGINT)
            remaining = [line for line in lines if line]
        process.send_signal(signal.SIGINT)  # the other one would take minutes
        assert endless.result().status_code == 503
        assert endless.result().json()["error"]["message"].startswith("the server was stopped")
    assert remaining[-1] == "data: [DONE]"
    assert json.loads(remaining[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", "triform: the server has stopped\n")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_the_studio_opens_the_page_with_its_token(start: Any, tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may run the tests, ignores it
    process = start("studio", "--port", 0, "--host", "0.0.0.0", "--token", "50%/x")
    signal.signal(signal.SIGHUP, handler)
    lines = sorted(process.stdout.readline() for _ in range(2))
    assert lines[0].startswith("http://127.0.0.1:")
    assert lines[0].split()[0].endswith("/#token=50%25%2Fx")
    assert lines[1] == f"opened {lines[0].split()[0]}\n"
    assert (tmp_path / "runs").is_dir()  # an empty folder for the runs to come
    process.send_signal(signal.SIGHUP)  # the terminal was closed
    assert process.communicate(timeout=300)[1] == "triform: the server has stopped\n"
    assert process.returncode == 130


def test_a_port_in_use_is_refused_in_one_line() -> None:
    with bind_socket("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP  # otherwise asyncio delays small packets by 40 ms
        port = sock.getsockname()[1]
        assert format_url("0.0.0.0", sock) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use; .*--port 0"):
            bind_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 65_536, "--port 65536: choose a port from 0 to 65535"),
        ("no.such.host.invalid", 0, "--host no.such.host.invalid: there is no such host"),
        ("192.0.2.1", 0, "--host 192.0.2.1: this machine does not have this address"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(host: str, port: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_socket(host, port)
    assert str(caught.value) == message


def test_a_port_without_permission_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match=r"no permission to use port 80 of .*; choose a port from 1024"):
        bind_socket("127.0.0.1", 80)


def test_models_are_named_by_their_folder_or_as_given() -> None:
    assert parse_runs(["runs/reviews/", "en-fr=runs/t"]) == {
        "reviews": Path("runs/reviews"),
        "en-fr": Path("runs/t"),
    }
    with pytest.raises(ConfigError, match="two models have the name a"):
        parse_runs(["x/a", "y/a"])
    for text in ("=runs/a", "a="):
        with pytest.raises(ConfigError, match="write NAME=RUN or RUN"):
            parse_runs([text])


def test_only_an_address_that_other_machines_reach_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIFORM_TOKEN", raising=False)
    assert choose_token("127.0.0.1", None, None) == ("", "")
    token, shown = choose_token("0.0.0.0", None, None)
    assert token == shown
    assert len(token) >= 32


def test_an_option_goes_before_the_variable_and_only_the_option_token_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token.txt"
    file.write_text("of-the-file\n")
    file.chmod(0o600)
    for host in ("127.0.0.1", "0.0.0.0"):
        for token, path, expected in (
            (None, None, ("of-the-variable", "")),
            (None, file, ("of-the-file", "")),
            ("of-the-option", None, ("of-the-option", "of-the-option")),
        ):
            monkeypatch.setenv("TRIFORM_TOKEN", "of-the-variable")
            assert choose_token(host, token, path) == expected
            assert "TRIFORM_TOKEN" not in os.environ
    assert capsys.readouterr().err == ""
    if os.name == "posix":
        file.chmod(0o644)
        assert choose_token("0.0.0.0", None, file) == ("of-the-file", "")
        assert "chmod 600" in capsys.readouterr().err


def test_an_empty_token_and_two_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORM_TOKEN", "")
    with pytest.raises(ConfigError, match="TRIFORM_TOKEN: the token is empty"):
        choose_token("127.0.0.1", None, None)
    with pytest.raises(ConfigError, match="--token: the token is empty"):
        choose_token("127.0.0.1", "", None)
    file = tmp_path / "token.txt"
    with pytest.raises(ConfigError, match=r"token\.txt cannot be read"):
        choose_token("127.0.0.1", None, file)
    for content, reason in (("", "is empty"), (" \n", "is empty"), ("x" * 5_000, "more than 4,096 characters")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=reason):
            choose_token("127.0.0.1", None, file)
    with pytest.raises(ConfigError, match="not both"):
        choose_token("127.0.0.1", "secret", file)


def test_training_jobs_and_the_output_do_not_have_the_token_of_the_variable(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFORM_TOKEN", "a-secret-token")
    process = start("studio", "--port", 0, "--json", "--device", "cpu")
    line = json.loads(process.stdout.readline())
    assert set(line) == {"address"}
    with httpx.Client(base_url=line["address"], timeout=300) as client:
        assert client.get("/api/jobs").status_code == 401
        client.headers["Authorization"] = "Bearer a-secret-token"
        body = {"task": "classify", "data": "builtin:reviews", "name": "job", "preset": "tiny"}
        settings = {"train.max_steps": 100_000, "train.baseline": False}
        assert client.post("/api/jobs", json=body | {"settings": settings}).status_code == 200
        [record] = (tmp_path / "runs" / ".studio" / "jobs").glob("*.json")
        pid = json.loads(record.read_text())["pid"]
        try:
            if not Path(f"/proc/{pid}/environ").exists():
                pytest.skip("this system does not show the environment of a process")
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"PATH=" in environment
            assert b"a-secret-token" not in environment
        finally:
            client.post("/api/jobs/job/stop")
