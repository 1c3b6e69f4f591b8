"""Bind a server to an address, and run it until it is interrupted."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from triform.errors import ConfigError
from triform.interrupts import HANGUP
from triform.serving.app import DRAIN_SECONDS
from triform.serving.connections import GuardedProtocol

MAX_PORT = 65_535
SWITCH_SECONDS = 0.0001  # after which a thread that computes lets the event loop run; Python waits 0.005
MAX_ACCEPTED = 32  # connections before the bound on connections is applied to them
WAITING_CONNECTIONS = 1_024  # that the system keeps until the server accepts them


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: A name or an address of this machine.
        port: The port; 0 for a free one.

    Raises:
        ConfigError: The port is in use or not allowed, or the address is not one of this machine.
    """
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"--port {port}: choose a port from 0 to {MAX_PORT}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host}: there is no such host") from None
    # asyncio turns off the delay of small packets only for sockets that name their protocol.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()
    except OSError as error:
        sock.close()
        raise ConfigError(_describe_bind_error(error, host, port)) from None
    sock.setblocking(False)
    return sock


def _describe_bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another one with --port, or a free one with --port 0"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to use port {port} of {host}; choose a port from 1024 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: this machine does not have this address"
    return f"cannot use port {port} of {host}: {error.strerror or error}"


def format_url(host: str, sock: socket.socket) -> str:
    """Return the address that a browser of this machine opens."""
    url_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{url_host}]' if ':' in url_host else url_host}:{sock.getsockname()[1]}"


class HttpServer(uvicorn.Server):
    """A server that reports when it is ready, and ends responses without an end when it stops.

    Args:
        app: The app of `create_app`.
        on_start: Called when the server is ready.
        drain: Seconds that running requests have to end when the server stops.
    """

    def __init__(
        self, app: Starlette, on_start: Callable[[], None] = lambda: None, drain: float = DRAIN_SECONDS
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",  # the same on every machine, whether or not uvloop is installed
            http=GuardedProtocol,
            ws="none",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=MAX_ACCEPTED,
            timeout_graceful_shutdown=int(drain),
        )
        super().__init__(config)
        self.app, self.on_start = app, on_start

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGHUP as SIGTERM, unless it is ignored, as with `nohup`."""
        with super().capture_signals():
            is_main_thread = threading.current_thread() is threading.main_thread()
            if HANGUP is None or not is_main_thread or signal.getsignal(HANGUP) is signal.SIG_IGN:
                yield
                return
            previous = signal.signal(HANGUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(HANGUP, previous)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or []:
            sock.listen(WAITING_CONNECTIONS)  # asyncio uses one number for this and for what it accepts at once
        if self.started:
            self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.state.server.stopping.set()
        await super().shutdown(sockets)
        # What is cancelled now is not worth a message.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def run_server(app: Starlette, sock: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve an app until Ctrl-C, SIGTERM or SIGHUP.

    Running requests are answered first. A second Ctrl-C stops at once.

    Args:
        app: The app of `create_app`.
        sock: A socket that listens.
        on_start: Called when the server is ready.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        HttpServer(app, on_start).run([sock])
    except KeyboardInterrupt:  # uvicorn raises the signal again when it has stopped
        pass
    finally:
        sock.close()
