"""Who may use a server: tokens, `Host` and `Origin` headers, and the headers of every response.

A server on a loopback address answers requests of this machine only. A web page in a browser of this machine could
still reach it, directly or after its own name was pointed to 127.0.0.1 (DNS rebinding). So requests that name
another host or come from another site are refused. A server on another address requires a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triform.errors import ConfigError
from triform.serving.endpoints import ApiError, Dialect, render_error
from triform.serving.options import ServerOptions

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# The files of the page hold nothing secret. A browser loads them before the page can send the token.
PUBLIC_PATHS = frozenset({"/", "/health"})
PUBLIC_PREFIX = "/page/"
# Clients of LibreTranslate send the token as the parameter `api_key`, which the handlers of these routes check.
API_KEY_PATHS = frozenset({"/translate", "/detect", "/languages"})
RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach a server that is bound to this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def generate_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(24)


def check_token_option(options: ServerOptions) -> None:
    """Raise a ConfigError if a server would be open to other machines, or its token cannot be sent in a header."""
    if not options.token and not is_loopback(options.host):
        raise ConfigError(f"a server on {options.host} can be reached by other machines and needs a token")
    if options.token and not re.fullmatch(r"[!-~]+", options.token):
        raise ConfigError("the token may only contain letters, digits and punctuation of ASCII, and no spaces")


class SecurityMiddleware:
    """Refuses requests from other sites or without the token, and adds the headers of every response.

    Args:
        app: The app behind it.
        options: The options of the server.
        find_dialect: Returns the dialect of a path, which is the shape of its errors.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, find_dialect: Callable[[str], Dialect]) -> None:
        self.app, self.find_dialect, self.token = app, find_dialect, options.token
        self.is_loopback = is_loopback(options.host)
        self.allowed_hosts = {*LOOPBACK_NAMES, options.host.lower(), *map(str.lower, options.allowed_hosts)}
        if not self.is_loopback:
            self.allowed_hosts.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self.check(scope["path"], Headers(scope=scope))
        except ApiError as error:
            response = render_error(self.find_dialect(scope["path"]), error)
            await response(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def check(self, path: str, headers: Headers) -> None:
        """Raise `ApiError` if a request must not be answered."""
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(host, headers)
        if path not in PUBLIC_PATHS | API_KEY_PATHS and not path.startswith(PUBLIC_PREFIX):
            check_token(self.token, headers)

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self.allowed_hosts or (not self.is_loopback and _is_ip_address(name)):
            return
        raise ApiError(
            403,
            f"the server does not answer requests to the host {name!r}; use 127.0.0.1 or localhost, or start the "
            "server with --allow-host",
        )

    def _check_origin(self, host: str, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise ApiError(403, f"requests from pages of another site ({origin[:200]}) are refused")
        is_navigation = headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_navigation:
            raise ApiError(403, "requests from pages of another site are refused")


def check_token(token: str, headers: Headers, api_key: str = "") -> None:
    """Raise `ApiError` if a request lacks the token of the server.

    Args:
        token: The token of the server; "" if none is required.
        headers: The headers of the request, with the token as `Authorization: Bearer TOKEN`.
        api_key: The token as a parameter of the request.
    """
    scheme, _, header_token = headers.get("authorization", "").partition(" ")
    bearer = header_token.strip() if scheme.lower() == "bearer" else ""
    if token and not any(hmac.compare_digest(token.encode(), text.encode()) for text in (bearer, api_key)):
        reason = "the token is wrong" if bearer or api_key else "this server requires a token"
        raise ApiError(
            401, f"{reason}; send it as Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
        )


def _host_name(host: str) -> str:
    """Return the name in a `Host` header, without the port and without the brackets of IPv6 addresses."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host


def _is_ip_address(name: str) -> bool:
    """Return whether a name is an address, which DNS rebinding cannot change."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
