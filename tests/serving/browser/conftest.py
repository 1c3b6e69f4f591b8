"""A browser, a server with the page of the studio, and a tab that accepts neither errors nor foreign requests."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triform.serving import ServerOptions

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

StartServer = Callable[[ServerOptions], AbstractContextManager[str]]
StartStudio = Callable[..., str]
OpenTab = Callable[..., "Page"]


@pytest.fixture(scope="module")  # while Playwright runs, no other event loop can run in this thread
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


@pytest.fixture(scope="session")
def studio(start_server: StartServer, runs_folder: Path) -> Iterator[str]:
    """The address of a studio over the folder of tiny runs. Tests must not change these runs."""
    with start_server(ServerOptions(folder=runs_folder, page=True, device="cpu")) as address:
        yield address


@pytest.fixture
def start_studio(start_server: StartServer) -> Iterator[StartStudio]:
    """Start a studio for one test: `address = start_studio(folder=folder)`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(
            start_server(ServerOptions(page=True, device="cpu", **options))
        )


@pytest.fixture
def open_tab(browser: Browser, start_studio: StartStudio) -> Iterator[OpenTab]:
    """Open tabs: `open_tab(address, "#/runs", width=420, dark=True)`.

    The test fails if a tab wrote to the console, raised an error, or requested anything from another host. The
    browser itself writes about responses with errors and about failed requests; `allow_status` is the status that a
    test expects, and `allow_failures` accepts requests without a response.
    Tabs are closed before the servers of `start_studio` stop.
    """
    complaints: list[str] = []
    tabs: list[Page] = []

    def open_one(
        address: str,
        fragment: str = "",
        *,
        width: int = 1280,
        dark: bool = False,
        allow_status: int = 0,
        allow_failures: bool = False,
    ) -> Page:
        def check_message(message: ConsoleMessage) -> None:
            is_status = bool(allow_status) and f"status of {allow_status} " in message.text
            if not is_status and not (allow_failures and "net::ERR_FAILED" in message.text):
                complaints.append(f"console: {message.text}")

        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        tabs.append(tab)
        tab.set_default_timeout(240_000)  # the machine may be busy
        tab.on("console", check_message)
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
