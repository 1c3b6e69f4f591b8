"""One connection of a server: the protocol of uvicorn, with bounds on what a client can make it wait for or read.

Uvicorn trusts the proxy in front of it: it waits for a head forever, reads the rest of a body that it has refused,
and accepts connections until the process can open no more files. A server without a proxy cannot.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, cast

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from triform.serving.security import RESPONSE_HEADERS

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100
MAX_PIPELINED = 8  # requests that a client sends before the first one is answered
MAX_SMALL_CHUNKS = 1_000  # of a body, in addition to one for each `BYTES_PER_CHUNK`
BYTES_PER_CHUNK = 64
PARSED_BYTES = 1 << 14  # that are parsed before the bounds are checked again
LINGER_SECONDS, LINGER_BYTES = 2.0, 1 << 20  # that a refused client may go on sending
NEW_SECONDS = 1.0  # in which a new connection is not closed in favour of another one, if possible


class GuardedProtocol(HttpToolsProtocol):
    """The connection of a client that is not trusted.

    - A response that starts before the end of the request, such as 401, ends the connection.
    - A head must be complete within some seconds. The sizes of heads, and the number of chunks and of pipelined
      requests, are bounded.
    - Beyond the bound on connections, the one that sends least is closed, if no request of it is being answered.
    """

    transport: Any

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.app = cast(Any, self._respond)
        server = cast(Any, config.app).state.server
        self.server_options, self.stopping = server.options, server.stopping
        self.start_time, self.n_bytes = self.loop.time(), 0
        self.cycles: list[RequestResponseCycle] = []  # requests with a complete head and an incomplete response
        self.other_bytes = self.body_bytes = self.n_chunks = 0  # of a request: head, trailer and sizes of chunks
        self.head_timer: asyncio.TimerHandle | None = None
        self.refusal = 400, "the request is not valid HTTP"  # if the parser stops
        self.is_refused = False

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start, or make room by closing the connection that sends least."""
        limit = self.server_options.max_connections
        is_refused = self.stopping.is_set() or (len(self.connections) >= limit and not self._close_others(limit))
        super().connection_made(cast(Any, _LingeringTransport(transport, self)))
        self._start_head_timer()
        if is_refused:
            self.refuse(503, "the server is stopping, or has too many connections")
            transport.close()

    def _close_others(self, limit: int) -> bool:
        """Close a few connections that send little, and return whether there are such."""
        now = self.loop.time()
        others = [other for other in cast("set[GuardedProtocol]", self.connections) if other.waits_for_client]
        for other in heapq.nsmallest(1 + limit // 100, others, key=lambda other: other.rank(now)):
            self.connections.discard(cast(Any, other))
            other.transport.abort()
        return bool(others)

    @property
    def waits_for_client(self) -> bool:
        """Whether no complete request is being answered."""
        return not self.cycles or self.cycles[0].more_body

    def rank(self, now: float) -> tuple[bool, float, float]:
        """Return a value that is lower for connections that should be closed rather than others."""
        age = now - self.start_time
        return age < NEW_SECONDS, self.n_bytes / max(age, NEW_SECONDS), self.start_time

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all requests, not only the last one."""
        self._stop_head_timer()
        self._disconnect()
        super().connection_lost(exc)

    def _disconnect(self) -> None:
        for cycle in self.cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def shutdown(self) -> None:
        """End the connection after its request, or now if the request has not arrived yet."""
        if self.cycles and self.waits_for_client:
            self.refuse(503, "the server is stopping")
        else:
            super().shutdown()

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless a response has started, and close the connection."""
        self.is_refused, is_answered = True, any(cycle.response_started for cycle in self.cycles)
        self._disconnect()
        if is_answered or self.transport.is_closing():
            self.transport.abort()
            return
        headers = {
            **RESPONSE_HEADERS,
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(message)),
            "Connection": "close",
        }
        head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[status] + f"{head}\r\n{message}".encode())
        self.transport.close()

    # -- the request

    def _start_head_timer(self) -> None:
        self.head_timer = self.loop.call_later(self.server_options.head_timeout, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _on_head_timeout(self) -> None:
        if self.cycles:  # the head of the next request may wait until this one is answered
            self._start_head_timer()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, a part at a time."""
        self.n_bytes += len(data)
        self._unset_keepalive_if_required()
        if self.head_timer is None and not (self.cycles and self.cycles[-1].more_body):
            self._start_head_timer()
        for start in range(0, len(data), PARSED_BYTES):
            if self.transport.is_closing():
                self.transport.count_unread(len(data) - start)
                return
            self._parse(data[start : start + PARSED_BYTES])

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.refuse(*self.refusal)
            return
        self.other_bytes += len(data)
        if self.other_bytes > MAX_HEAD_BYTES + self.body_bytes:
            self.refuse(431, "the head of the request is too long")

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse a head again without `Upgrade`, which Java sends: the parser would drop the body."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.refuse(400, "the server is not a proxy")
            return
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.other_bytes = self.body_bytes = self.n_chunks = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._stop_parsing(431, f"the request has more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        """Start to answer a request, or let it wait for the one before it."""
        if self.parser.should_upgrade():
            return
        self._stop_head_timer()
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._stop_parsing(400, "the request has several Host headers")
        self.cycles = [cycle for cycle in self.cycles if not cycle.response_complete]
        if len(self.cycles) > MAX_PIPELINED:
            self._stop_parsing(429, "too many requests were sent before the first one was answered")
        super().on_headers_complete()
        self.cycles.append(self.cycle)

    def on_chunk_header(self) -> None:
        """Count the chunks of a body: each takes as much time as many bytes."""
        self.n_chunks += 1
        if self.n_chunks > MAX_SMALL_CHUNKS + self.body_bytes // BYTES_PER_CHUNK:
            self._stop_parsing(413, "the body consists of too many small chunks; send larger ones")

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self.body_bytes += len(body)
        self.other_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _stop_parsing(self, status: int, message: str) -> None:
        self.refusal = status, message
        raise ValueError(message)  # stops the parser

    # -- the response

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app. A response that starts before the end of the body closes the connection."""

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self.cycle.more_body:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self.config.loaded_app(scope, receive, send_and_close)
        except asyncio.CancelledError:  # the server stops; uvicorn would write a traceback
            self._disconnect()
            self.transport.close()

    def on_response_complete(self) -> None:
        """Start with the next request, if there is one."""
        self.cycles = [cycle for cycle in self.cycles if not cycle.response_complete]
        super().on_response_complete()


class _LingeringTransport:
    """A transport whose `close` lets a client that still sends read the response.

    If a socket is closed while there is something to read, the client may get an error instead of the response. So
    the end of the response is sent, and what arrives is dropped for a short time.
    """

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        self.transport, self.protocol = transport, protocol
        self.lingers, self.n_unread = False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is read or written."""
        return self.lingers or self.transport.is_closing()

    def close(self) -> None:
        """Close at once, or soon if the client may still be sending."""
        is_incomplete = self.protocol.is_refused or any(cycle.more_body for cycle in self.protocol.cycles)
        if self.lingers or self.transport.is_closing() or not is_incomplete:
            self.transport.close()
            return
        self.lingers = True
        self.transport.write_eof()
        self.protocol.flow.resume_reading()
        self.protocol.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def count_unread(self, n_bytes: int) -> None:
        """Close when a client does not stop to send."""
        self.n_unread += n_bytes
        if self.n_unread > LINGER_BYTES:
            self.transport.abort()
