"""Start a server in a separate process, and send it the requests of many clients over loopback."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE_SECONDS = 0.025  # between two requests to /health
START_SECONDS = 120  # in which a server must start


@dataclass(frozen=True)
class ApiRequest:
    """A POST request to a route."""

    kind: str
    path: str
    body: Mapping[str, Any]


@dataclass
class LoadResult:
    """What clients received: latencies of requests by kind in seconds, errors, and the time of all together."""

    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answers: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def n_requests(self) -> int:
        return sum(map(len, self.latencies.values()))

    @property
    def requests_per_s(self) -> float:
        return self.n_requests / self.seconds


class Server:
    """A `triform serve` or `triform studio` process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def memory(self) -> float:
        """Return the resident memory in MiB, or NaN where the system does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return float("nan")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """Return the processor time of the server, or NaN where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_server(*arguments: str, command: str = "serve", prefix: Sequence[str] = ()) -> Iterator[Server]:
    """Run `triform serve`, or another command, with these arguments on a free port, and stop it at the end.

    Args:
        arguments: The arguments of the command.
        command: serve or studio.
        prefix: A program that runs the command, with its arguments.
    """
    words = [*prefix, sys.executable, "-m", "triform", command, *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with code {process.wait(START_SECONDS)}")
        yield Server(process, int(json.loads(line)["address"].rpartition(":")[2]))
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


class Connection:
    """A connection that is kept open for many requests, one after the other."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port = port
        self.authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Return the status and the body of the response."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"{self.authorization}Content-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        response_head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(response_head.partition("content-length:")[2].split()[0])
        return int(response_head.split(maxsplit=2)[1]), await reader.readexactly(length)

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def _run_client(
    port: int, next_request: Callable[[int], ApiRequest], result: LoadResult, *, until: float, n_requests: int
) -> None:
    connection = Connection(port)
    index = 0
    while time.perf_counter() < until and index < n_requests:
        request = next_request(index)
        start = time.perf_counter()
        try:
            status, content = await connection.request("POST", request.path, request.body)
        except (OSError, asyncio.IncompleteReadError) as error:
            result.errors.append(f"{request.kind}: {error!r}")
            connection.close()
            continue
        finally:
            index += 1
        if status != 200:
            result.errors.append(f"{request.kind}: {status} {content[:200]!r}")
            continue
        result.latencies[request.kind].append(time.perf_counter() - start)
        result.answers.append(json.loads(content))
    connection.close()


def run_clients(
    port: int,
    n_clients: int,
    make_request: Callable[[int, int], ApiRequest],
    *,
    seconds: float = float("inf"),
    n_requests: int = sys.maxsize,
    keep_answers: bool = False,
) -> LoadResult:
    """Run clients that each send one request after the other.

    Args:
        port: The port of the server.
        n_clients: The number of clients.
        make_request: Returns a request, given the number of the client and of its request.
        seconds: No request is sent after so many seconds.
        n_requests: Requests of each client.
        keep_answers: Whether to return the answers.
    """
    result = LoadResult()
    if not keep_answers:
        result.answers = _Discarded()

    async def run_all() -> None:
        until = time.perf_counter() + seconds
        clients = [
            _run_client(
                port,
                lambda index, client=client: make_request(client, index),  # type: ignore[misc]
                result,
                until=until,
                n_requests=n_requests,
            )
            for client in range(n_clients)
        ]
        await asyncio.gather(*clients)

    start = time.perf_counter()
    asyncio.run(run_all())
    result.seconds = time.perf_counter() - start
    return result


class _Discarded(list[Any]):
    def append(self, item: Any) -> None:
        """Forget it."""


def probe_health(port: int, seconds: float) -> list[float]:
    """Send requests to /health for some seconds and return their latencies in seconds."""

    async def probe() -> list[float]:
        connection, latencies = Connection(port), []
        until = time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            status, _ = await connection.request("GET", "/health")
            assert status == 200
            latencies.append(time.perf_counter() - start)
            await asyncio.sleep(PROBE_SECONDS)
        connection.close()
        return latencies

    return asyncio.run(probe())


def start_probe(port: int, seconds: float) -> subprocess.Popen[str]:
    """Start `probe_health` in a process of its own, which a busy client cannot delay; it prints the latencies."""
    program = f"import json, benchmarks.load as load; print(json.dumps(load.probe_health({port}, {seconds})))"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=1000, method="inclusive")[round(percent * 10) - 1]
