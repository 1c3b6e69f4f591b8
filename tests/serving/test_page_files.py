"""The files of the page: strict policy, entity tags, small, and everything in the package."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from triform.serving import ServerOptions
from triform.serving.page_files import load_page_files

MAX_COMPRESSED_BYTES = 200_000


@pytest.fixture
def client(connect: Any) -> TestClient:
    return connect(ServerOptions(page=True))


def test_the_page_is_served_with_a_strict_policy_and_without_inline_code(client: TestClient) -> None:
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", answer.text)
    assert "//" not in answer.text  # no address of another host


def test_every_file_that_the_page_names_is_served_with_its_type(client: TestClient) -> None:
    names = re.findall(r'(?:href|src)="(page/[^"]+)"', client.get("/").text)
    assert len(names) > 4
    for name in names:
        answer = client.get("/" + name)
        assert answer.status_code == 200, name
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
        assert answer.headers["Content-Type"].startswith(kind)


def test_every_module_that_a_script_imports_exists() -> None:
    files = load_page_files()
    for name, file in files.items():
        if name.endswith(".js") and "/" not in name:
            for imported in re.findall(r"(?:from |import\()'\./([^']+)'", file.content.decode()):
                assert imported in files, f"{name} imports {imported}"


def test_an_unchanged_file_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/page/app.js")
    second = client.get("/page/app.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (second.status_code, second.content) == (304, b"")
    assert client.get("/page/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_files_are_sent_compressed_only_to_clients_that_accept_it(client: TestClient) -> None:
    compressed = client.get("/page/app.js", headers={"Accept-Encoding": "gzip"})
    plain = client.get("/page/app.js", headers={"Accept-Encoding": "identity"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert compressed.content == plain.content  # the client has uncompressed it


def test_the_page_with_its_scripts_is_small() -> None:
    assert sum(len(file.compressed) for file in load_page_files().values()) < MAX_COMPRESSED_BYTES


@pytest.mark.parametrize("name", ["missing.js", "../app.py", "..%2Fapp.py", "%2Fetc%2Fpasswd", ""])
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_a_server_without_the_page_does_not_serve_it(connect: Any) -> None:
    assert connect(ServerOptions()).get("/").status_code == 404


def test_the_licence_of_the_vendored_library_is_included() -> None:
    assert b"MIT License" in load_page_files()["vendor/uPlot.LICENSE"].content
