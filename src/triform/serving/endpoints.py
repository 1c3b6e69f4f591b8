"""A route with its request and its response as types, and errors in the shape of each dialect.

The modules of the dialects declare `Endpoint`s. `to_route` turns an endpoint into a Starlette route: it decodes and
validates the body, calls the handler, and encodes what it returns. `openapi` describes the same declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from triform.errors import CheckpointError, TriformError

if TYPE_CHECKING:
    from triform.serving.server import Server

log = logging.getLogger("triform")
Dialect = Literal["openai", "text", "translate", "triform", "operations"]
INVALID_REQUEST_STATUS = 400


class ApiError(Exception):
    """An error with an HTTP status. `param` names the parameter that is wrong."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, dict(headers or {})


@dataclass(frozen=True)
class Call:
    """One request to an endpoint: the server, the decoded body, and the HTTP request."""

    server: Server
    body: Any
    http: Request

    @property
    def path(self) -> Mapping[str, str]:
        """The parameters in the path of the route."""
        return self.http.path_params


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A route of the API.

    Args:
        method: GET, POST or DELETE.
        path: The path, with parameters in braces as Starlette writes them.
        handler: Returns a struct, which is sent as JSON, or a Starlette response.
        dialect: The shape of errors.
        summary: One sentence for `/openapi.json`.
        request: The type of the JSON body; None if there is none.
        response: The type of the JSON response; None if it is no JSON.
        query: The types of the parameters after `?`, by name.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    dialect: Dialect
    summary: str
    request: Any = None
    response: Any = None
    query: Mapping[str, type] | None = None


def to_route(endpoint: Endpoint, server: Server) -> Route:
    """Return the Starlette route of an endpoint."""

    async def respond(http: Request) -> Response:
        try:
            body = decode_body(await http.body(), endpoint.request) if endpoint.request else None
            result = await endpoint.handler(Call(server, body, http))
        except ApiError as error:
            return render_error(endpoint.dialect, error)
        except TriformError as error:
            return render_error(endpoint.dialect, to_api_error(error))
        except Exception:
            log.exception("error in %s %s", endpoint.method, endpoint.path)
            return render_error(endpoint.dialect, ApiError(500, "internal error; see the log of the server"))
        return result if isinstance(result, Response) else json_response(result)

    return Route(endpoint.path, respond, methods=[endpoint.method])


def decode_body(content: bytes, request_type: Any) -> Any:
    """Decode a JSON body; raise `ApiError` with the place of what is wrong."""
    try:
        return msgspec.json.decode(content, type=request_type)
    except msgspec.ValidationError as error:
        reason, _, location = str(error).partition(" - at `$")
        name = location.rstrip("`").lstrip(".")
        prefix = f"{name}: " if name else ""
        raise ApiError(INVALID_REQUEST_STATUS, f"{prefix}{reason}", param=name or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(INVALID_REQUEST_STATUS, f"the body is not valid JSON: {error}") from None


def to_api_error(error: TriformError) -> ApiError:
    """Return the error of a request whose run or input cannot be used."""
    status = 503 if isinstance(error, CheckpointError) else INVALID_REQUEST_STATUS
    return ApiError(status, str(error))


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, headers=dict(headers or {}), media_type="application/json")


def render_error(dialect: Dialect, error: ApiError) -> Response:
    """Return an error in the shape that clients of the dialect read."""
    content: dict[str, Any]
    if dialect == "openai":
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        content = {"error": {"message": error.message, "type": kind, "param": error.param, "code": None}}
    elif dialect == "text":
        kind = {429: "Overloaded", 413: "Validation", 400: "Validation", 422: "Tokenizer"}.get(
            error.status, "Backend" if error.status >= 500 else "Validation"
        )
        content = {"error": error.message, "error_type": kind}
    else:
        content = {"error": error.message}
    return json_response(content, error.status, error.headers)
