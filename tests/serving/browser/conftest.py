"""A browser, a server with the page of the studio, and a tab that accepts neither errors nor foreign requests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn

from triform.serving import ServerOptions, create_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

StartServer = Callable[[ServerOptions], AbstractContextManager[str]]
OpenTab = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    missing = [name for name, is_installed in [
        ("playwright", importlib.util.find_spec("playwright")),
        ("chromium", shutil.which("chromium")),
    ] if not is_installed]  # fmt: skip
    if missing:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def run_server(options: ServerOptions) -> Iterator[str]:
    """Run a server in a thread and yield its address, which has no final slash."""
    config = uvicorn.Config(create_app(options), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=30)


@pytest.fixture(scope="session")
def studio(runs_folder: Path) -> Iterator[str]:
    """The address of a studio over the folder of tiny runs. Tests must not change these runs."""
    with run_server(ServerOptions(folder=runs_folder, page=True, device="cpu")) as address:
        yield address


@pytest.fixture(scope="session")
def start_server() -> StartServer:
    """Start a server of a test's own: `with start_server(ServerOptions(...)) as address`."""
    return run_server


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open tabs: `open_tab(address, "#/runs", width=420, dark=True)`.

    The test fails if a tab wrote to the console, raised an error, or requested anything from another host.
    """
    complaints: list[str] = []
    tabs: list[Page] = []

    def open_one(address: str, fragment: str = "", *, width: int = 1280, dark: bool = False) -> Page:
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        tabs.append(tab)
        tab.set_default_timeout(20_000)
        tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((address + "/", "data:", "blob:"))
                else complaints.append(f"foreign request: {request.url}")
            ),
        )
        tab.goto(f"{address}/{fragment}")
        return tab

    yield open_one
    for tab in tabs:
        tab.context.close()
    assert not complaints
