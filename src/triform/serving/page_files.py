"""Serve the page of the studio: its files, with their digests as entity tags and a strict content security policy.

The files are read once and held in memory. They contain nothing secret, so they need no token; the API does.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# Files that the report of a run and the explain page use too, under the names that the page loads them by.
SHARED_FILES = {
    **{name: ("triform.html", name) for name in ("theme.css", "report.css")},
    **{
        name: ("triform.explain", name)
        for name in ("components.css", "components.js", "heatmap.js", "attention_view.js")
    },
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks each time, and gets 304 while the file is the same
    "Vary": "Accept-Encoding",
}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, as it is and compressed."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def load_page_files() -> dict[str, PageFile]:
    """Return all files of the page by name, such as `runs.js` or `vendor/uPlot.min.css`."""
    contents = dict(_read_files(files("triform.serving").joinpath("page"), ""))
    for name, (package, file_name) in SHARED_FILES.items():
        contents[name] = files(package).joinpath(file_name).read_bytes()
    return {name: _page_file(name, content) for name, content in contents.items()}


def page_routes() -> list[Route]:
    """Return the routes of the page: `/` and the files below `/page/`."""
    return [Route("/", _serve_file), Route("/page/{name:path}", _serve_file)]


async def _serve_file(http: Request) -> Response:
    file = load_page_files().get(http.path_params.get("name", "index.html"))
    if file is None:
        return Response("no such file", status_code=404, media_type="text/plain", headers=HEADERS)
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in [tag.strip().removeprefix("W/") for tag in http.headers.get("If-None-Match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    if "gzip" in http.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, headers=headers, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _read_files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read_files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _page_file(name: str, content: bytes) -> PageFile:
    suffix = name[name.rfind(".") :]
    media_type = MEDIA_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    digest = hashlib.sha256(content).hexdigest()
    return PageFile(content, gzip.compress(content, mtime=0), media_type, f'"{digest[:32]}"')
