"""The requests and the Python of docs/serving.md and of the tutorial, sent to a server with small models."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from triform.serving import ServerOptions
from triform.serving.app import ENDPOINTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
TUTORIAL = (DOCS / "tutorials" / "serve.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE + TUTORIAL, re.DOTALL | re.MULTILINE)


REQUESTS = [line for block in find_blocks("sh") for line in block.splitlines() if line.startswith("curl ")]


@pytest.fixture(scope="module")
def runs(runs_folder: Path) -> dict[str, Path]:
    return {name: runs_folder / path for name, path in
            {"story": "verses", "reviews": "reviews", "en-fr": "french"}.items()}  # fmt: skip


@pytest.fixture(scope="module")
def address(start_server: Any, runs: dict[str, Path]) -> Iterator[str]:
    with start_server(ServerOptions(runs=runs, device="cpu")) as address:
        yield address


@pytest.mark.parametrize("command", REQUESTS)
def test_the_requests_of_the_page_are_answered(address: str, command: str) -> None:
    words = iter(shlex.split(command)[1:])
    url, method, headers, body = "", "GET", {}, None
    for word in words:
        if word == "--json":
            method, body, headers["Content-Type"] = "POST", next(words), "application/json"
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        else:
            url = word.replace(ADDRESS, address)
    answer = httpx.request(method, url, content=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def test_the_python_of_the_page_runs(
    address: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "reviews").symlink_to(runs["reviews"])
    monkeypatch.chdir(tmp_path)
    snippets = find_blocks("python")
    assert len(snippets) >= 4
    module = ModuleType("page")
    for snippet in snippets:
        exec(compile(snippet.replace(ADDRESS, address), "serving.md", "exec"), module.__dict__)
        assert capsys.readouterr().out.strip()


def test_the_page_names_every_route_of_the_dialects() -> None:
    paths = {endpoint.path for endpoint in ENDPOINTS if not endpoint.path.startswith("/api/")}
    assert [path for path in sorted(paths - {"/v1/models/{id:path}"}) if path not in PAGE] == []
