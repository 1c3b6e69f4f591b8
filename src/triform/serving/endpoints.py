"""A route with its request and its response as types, and errors in the shape of each dialect.

The modules of the dialects declare `Endpoint`s. `to_route` turns an endpoint into a Starlette route: it reads,
decodes and validates the body, calls the handler, and encodes what it returns. `openapi` describes the same
declarations.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from triform.errors import CheckpointError, TriformError
from triform.serving.metrics import ROUTE_KEY

if TYPE_CHECKING:
    from triform.serving.server import Server

log = logging.getLogger("triform")
Dialect = Literal["openai", "text", "translate", "triform", "operations"]
INVALID_REQUEST_STATUS = 400
FULL_DISK_STATUS = 507
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLIENT_CLOSED_STATUS = 499  # nobody receives it; /metrics counts it
BODY_SECONDS, BODY_BYTES_PER_SECOND = 60.0, 1 << 14  # for a client to send a body, and longer for a large one
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"
STREAM_TYPE = "text/event-stream"
UPLOAD_TYPE = "application/octet-stream"
# What OpenAPI says of texts that are refused if they are empty. The handlers refuse them, in clear words.
Text = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "pattern": r"\S"})]
NON_EMPTY_LIST = msgspec.Meta(extra_json_schema={"minItems": 1})
Texts = Text | Annotated[list[Text], NON_EMPTY_LIST]
SURROGATE = re.compile("[\ud800-\udfff]")


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

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters after `?`."""
        return self.http.query_params


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
        other_responses: What a response holds that is no JSON, in words, by media type.
        query: The types of the parameters after `?`, by name.
        form: Whether the body may also be a form, as HTML forms send it.
        upload: Whether the body is a file, which the handler reads.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    dialect: Dialect
    summary: str
    request: Any = None
    response: Any = None
    other_responses: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, type] | None = None
    form: bool = False
    upload: bool = False


def to_route(endpoint: Endpoint, server: Server) -> Route:
    """Return the Starlette route of an endpoint."""

    async def respond(http: Request) -> Response:
        http.scope[ROUTE_KEY] = endpoint.path
        try:
            body = await read_request(endpoint, server, http) if endpoint.request else None
            result = await _run_until_disconnect(endpoint, Call(server, body, http))
        except ApiError as error:
            return render_error(endpoint.dialect, error)
        except TriformError as error:
            return render_error(endpoint.dialect, to_api_error(error))
        except OSError as error:  # a full disk, a folder without permission to write
            log.error("%s %s: %s", endpoint.method, endpoint.path, error)
            return render_error(endpoint.dialect, to_file_error(error))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        except asyncio.CancelledError:
            if not server.stopping.is_set():
                raise
            stopped = ApiError(503, "the server was stopped before the request was finished")
            return render_error(endpoint.dialect, stopped)
        except Exception:
            log.exception("error in %s %s", endpoint.method, endpoint.path)
            return render_error(endpoint.dialect, ApiError(500, "internal error; see the log of the server"))
        return result if isinstance(result, Response) else json_response(result)

    return Route(endpoint.path, respond, methods=[endpoint.method])


async def _run_until_disconnect(endpoint: Endpoint, call: Call) -> Any:
    """Run a handler. It is cancelled when the client disconnects, which frees its place in the batch."""
    if endpoint.request is None:  # the body is not read, so nothing tells of a disconnect
        return await endpoint.handler(call)

    async def watch() -> None:
        while (await call.http.receive())["type"] != "http.disconnect":
            pass

    handler = asyncio.ensure_future(endpoint.handler(call))
    watcher = asyncio.ensure_future(watch())
    try:
        await asyncio.wait((handler, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not handler.done():
            raise ClientDisconnect
        return await handler
    finally:
        handler.cancel()
        watcher.cancel()
        await asyncio.gather(handler, watcher, return_exceptions=True)


async def read_request(endpoint: Endpoint, server: Server, http: Request) -> Any:
    """Read and decode the body of a request."""
    media_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == FORM_TYPE and endpoint.form:
        return decode_form(await read_body(http, server.options.max_body), endpoint.request)
    if media_type != JSON_TYPE:
        raise ApiError(415, f"send the body as JSON, with the header Content-Type: {JSON_TYPE}")
    return decode_body(await read_body(http, server.options.max_body), endpoint.request)


async def read_body(http: Request, max_bytes: int) -> bytes:
    """Return the body of a request that has at most `max_bytes` bytes."""
    return b"".join([chunk async for chunk in iter_body(http, max_bytes)])


async def iter_body(http: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives.

    Raises:
        ApiError: The body has more than `max_bytes` bytes, whether or not the client announced its length, or it
            arrives too slowly.
    """
    too_large = ApiError(413, f"the body has more than {max_bytes:,} bytes, which is the limit of this server")
    announced = http.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    n_bytes, start_time, chunks = 0, asyncio.get_running_loop().time(), http.stream()
    while True:
        try:
            async with asyncio.timeout_at(start_time + BODY_SECONDS + n_bytes / BODY_BYTES_PER_SECOND):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise ApiError(408, "the body arrives too slowly") from None
        if chunk is None:
            return
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            raise too_large
        yield chunk


def decode_body(content: bytes, request_type: Any) -> Any:
    """Decode a JSON body; raise `ApiError` with the place of what is wrong."""
    try:
        return msgspec.json.decode(content, type=request_type)
    except msgspec.ValidationError as error:
        raise _to_request_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(INVALID_REQUEST_STATUS, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(INVALID_REQUEST_STATUS, "the body is not valid JSON: it is nested too deeply") from None


def decode_form(content: bytes, request_type: Any) -> Any:
    """Decode a form; a parameter that is given several times is a list."""
    try:
        fields = parse_qs(content.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        raise ApiError(INVALID_REQUEST_STATUS, "the body is not a valid form") from None
    values = {name: texts[0] if len(texts) == 1 else texts for name, texts in fields.items()}
    try:
        return msgspec.convert(values, type=request_type, strict=False)
    except msgspec.ValidationError as error:
        raise _to_request_error(error) from None


def _to_request_error(error: msgspec.ValidationError) -> ApiError:
    reason, _, location = str(error).partition(" - at `$")
    name = location.rstrip("`").lstrip(".")
    if match := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason, re.DOTALL):
        field = match[2]
        kind = "unknown parameter" if match[1] == "contains unknown" else "missing parameter"
        path = f"{name}.{field}" if name else field
        return ApiError(INVALID_REQUEST_STATUS, f"{kind}: {path[:200]}", param=path[:200])
    prefix = f"{name}: " if name else ""
    return ApiError(INVALID_REQUEST_STATUS, f"{prefix}{reason}", param=name or None)


def to_api_error(error: TriformError) -> ApiError:
    """Return the error of a request whose run or input cannot be used."""
    status = 503 if isinstance(error, CheckpointError) else INVALID_REQUEST_STATUS
    return ApiError(status, str(error))


def to_file_error(error: OSError) -> ApiError:
    """Return the error of a request that needs a file which the server cannot read or write."""
    if error.errno in FULL_DISK_ERRORS:
        return ApiError(FULL_DISK_STATUS, "the disk of the server is full; free some space and try again")
    name = f" {error.filename}" if error.filename else ""
    return ApiError(503, f"the server cannot use its file{name}: {error.strerror or error}")


def encode_json(content: Any) -> bytes:
    """Return a value as JSON. What is not Unicode, such as a byte in the name of a folder, is sent as U+FFFD."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_surrogates(msgspec.to_builtins(content)))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(item) for name, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list) else value


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON."""
    body = encode_json(content)
    return Response(body, status_code=status, headers=dict(headers or {}), media_type=JSON_TYPE)


def render_error(dialect: Dialect, error: ApiError) -> Response:
    """Return an error in the shape that clients of the dialect read."""
    return json_response(error_content(dialect, error), error.status, error.headers)


def error_content(dialect: Dialect, error: ApiError) -> dict[str, Any]:
    """Return the JSON of an error in the shape that clients of the dialect read."""
    if dialect == "openai":
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return {"error": {"message": error.message, "type": kind, "param": error.param, "code": None}}
    if dialect == "text":
        kind = {429: "Overloaded", 413: "Validation", 400: "Validation", 422: "Tokenizer"}.get(
            error.status, "Backend" if error.status >= 500 else "Validation"
        )
        return {"error": error.message, "error_type": kind}
    return {"error": error.message}
