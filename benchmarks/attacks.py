"""Attack a server over loopback, and measure what other clients notice.

A studio with a small classifier is attacked by clients of one kind for some seconds. Meanwhile 200 honest clients
classify a text every second, and another client asks for /health 20 times a second. At the end of each attack the
server gets SIGTERM while the attack goes on. The clients of all attacks are on this machine.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.load import Connection, LoadResult, percentile, start_server
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform import train

TOKEN = "token-of-the-benchmark"
MODEL = "reviews"
OPEN_FILES = 1024  # that the server may open
PROBE_SECONDS = 0.05  # between two requests to /health
CLIENT_SECONDS = 1.0  # between two requests of an honest client
GIVE_UP_SECONDS = 30.0  # after which a client counts an error
STOP_SECONDS = 90.0  # after which the server is killed
BLOCK = 1 << 16
HEAD = "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n"
BOMB_ROW = "a sentence of the file that is uploaded\tx\n"


class Attack(NamedTuple):
    """An attack: its function, which gets the port, how many clients run it, and how soon each starts again."""

    run_client: Callable[[int], Awaitable[None]]
    n_clients: int
    pause: float = 0.0


async def _exchange(port: int, head: str, blocks: list[bytes], pause: float = 0.0) -> None:
    """Send a head and blocks, read the beginning of the answer, and wait until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write((head + "\r\n").encode())
        for block in blocks:
            writer.write(block)
            await writer.drain()
            if pause:
                await asyncio.sleep(pause)
        await reader.read(BLOCK)
    finally:
        writer.transport.abort()


async def _send_tiny_chunks(port: int, head: str) -> None:
    blocks = [b"1\r\nx\r\n" * (BLOCK // 6)] * 96  # 1 MiB in chunks of one byte
    await _exchange(port, head + "Transfer-Encoding: chunked\r\n", [*blocks, b"0\r\n\r\n"])


async def refused_chunks(port: int) -> None:
    await _send_tiny_chunks(port, HEAD.format("/predict"))


async def accepted_chunks(port: int) -> None:
    await _send_tiny_chunks(port, HEAD.format("/predict") + AUTHORIZATION)


async def long_texts(port: int) -> None:
    text = random.choice(("a fine film " * 87_000, "a" * 1_000_000))
    body = json.dumps({"inputs": text, "truncate": True, "model": MODEL}).encode()
    await _exchange(port, HEAD.format("/predict") + AUTHORIZATION + f"Content-Length: {len(body)}\r\n", [body])


async def pipelined_requests(port: int) -> None:
    await _exchange(port, "", [b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000] * 20)


async def silence(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read(1)
    finally:
        writer.transport.abort()


async def half_heads(port: int) -> None:
    await _exchange(port, "GET /health HTTP/1.1", [b"X: y\r\n"] * 600, pause=1.0)


async def slow_bodies(port: int) -> None:
    head = HEAD.format("/predict") + AUTHORIZATION + "Content-Length: 1000\r\n"
    await _exchange(port, head, [b" "] * 600, pause=1.0)


async def bombs(port: int) -> None:
    content = _make_bomb()
    head = HEAD.format("/api/uploads?name=rows.tsv.gz") + AUTHORIZATION + f"Content-Length: {len(content)}\r\n"
    await _exchange(port, head, [content])


@cache
def _make_bomb() -> bytes:
    """Return 60 million rows in 2.4 MB."""
    member = gzip.compress(BOMB_ROW.encode() * 600_000, 9)
    return b"".join([member] * 100)


ATTACKS = {
    "none": Attack(silence, 0),
    "1-byte chunks without the token": Attack(refused_chunks, 8),
    "1-byte chunks with the token": Attack(accepted_chunks, 8),
    "texts of 1 MiB": Attack(long_texts, 8),
    "pipelined requests": Attack(pipelined_requests, 8),
    "silent connections": Attack(silence, 1_100, 1.0),
    "half-sent heads": Attack(half_heads, 1_100, 1.0),
    "slow bodies": Attack(slow_bodies, 1_100, 1.0),
    "compressed uploads": Attack(bombs, 37),
}


def run_attack(name: str, port: int) -> None:
    """Run the clients of an attack until the process is ended."""
    attack = ATTACKS[name]
    _make_bomb()
    print("ready", flush=True)

    async def run_client() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await attack.run_client(port)
            await asyncio.sleep(attack.pause)

    async def run_all() -> None:
        await asyncio.gather(*(run_client() for _ in range(attack.n_clients)))

    asyncio.run(run_all())


def probe(port: int, seconds: float) -> None:
    """Ask for /health on a new connection each time, and print the seconds of each answer."""

    async def run() -> list[float]:
        latencies, until = [], time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            connection = Connection(port)
            try:
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    status, _ = await connection.request("GET", "/health")
                latencies.append(time.perf_counter() - start if status == 200 else GIVE_UP_SECONDS)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                latencies.append(GIVE_UP_SECONDS)
            connection.close()
            await asyncio.sleep(PROBE_SECONDS)
        return latencies

    print(json.dumps(asyncio.run(run())))


def _start(program: str) -> subprocess.Popen[str]:
    """Run a function of this module in a process of its own, which a busy client cannot delay."""
    words = [sys.executable, "-c", f"import benchmarks.attacks as attacks; attacks.{program}"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def run_honest_clients(port: int, n_clients: int, seconds: float) -> LoadResult:
    """Let clients classify a text every second, each on a connection that it keeps."""
    result, until = LoadResult(), time.perf_counter() + seconds
    body = {"inputs": "a fine film", "model": MODEL}

    async def run_client(number: int) -> None:
        connection = Connection(port, TOKEN)
        await asyncio.sleep(number / n_clients * CLIENT_SECONDS)
        while (start := time.perf_counter()) < until:
            try:
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    status, content = await connection.request("POST", "/predict", body)
                if status == 200:
                    result.latencies["predict"].append(time.perf_counter() - start)
                else:
                    result.errors.append(f"{status} {content[:100]!r}")
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                result.errors.append(repr(error))
                connection.close()
            await asyncio.sleep(max(0.0, start + CLIENT_SECONDS - time.perf_counter()))
        connection.close()

    async def run_all() -> None:
        await asyncio.gather(*map(run_client, range(n_clients)))

    asyncio.run(run_all())
    return result


def measure(report: BenchmarkReport, name: str, runs: Path, n_clients: int, seconds: float) -> None:
    """Attack a new server, and measure the other clients and the time in which the server stops."""
    limit = ("sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh")
    options = ("--token", TOKEN, "--device", "cpu", "--no-browser")
    with start_server(str(runs), *options, command="studio", prefix=limit) as server:
        run_honest_clients(server.port, min(4, n_clients), 2.0)  # to load the model
        attack = _start(f"run_attack({name!r}, {server.port})")
        try:
            assert attack.stdout is not None
            attack.stdout.readline()
            time.sleep(1.0)
            health = _start(f"probe({server.port}, {seconds})")
            result = run_honest_clients(server.port, n_clients, seconds)
            latencies = json.loads(health.communicate()[0])
            memory, start = server.memory(), time.perf_counter()
            server.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(STOP_SECONDS)
            stop_seconds = time.perf_counter() - start
            if server.process.poll() is None:
                server.process.kill()
        finally:
            attack.kill()
            attack.communicate()
    report.add_figures(
        name,
        health_p50=percentile(latencies, 50),
        health_p99=percentile(latencies, 99),
        health_max=max(latencies),
        requests=result.n_requests + len(result.errors),
        errors=len(result.errors),
        predict_p50=percentile(result.latencies["predict"], 50),
        predict_p99=percentile(result.latencies["predict"], 99),
        stop_s=stop_seconds,
        memory_mib=memory,
        first_errors=result.errors[:2],
    )


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("attacks", parse_options(__doc__, arguments))
    n_clients, seconds = (8, 2.0) if report.smoke else (200, 15.0)
    with tempfile.TemporaryDirectory() as name:
        model = {"d_model": 32, "n_layers": 1, "n_heads": 2}
        train("classify", out=Path(name) / MODEL, model=model, train={"max_steps": 2}, device="cpu", quiet=True)
        for attack in list(ATTACKS)[1:2] if report.smoke else ATTACKS:
            measure(report, attack, Path(name), n_clients, seconds)
    report.write()


if __name__ == "__main__":
    main()
