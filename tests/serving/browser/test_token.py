"""A studio that requires a token: from the address that the server prints, or typed into the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TOKEN = "50%/x"


def test_the_token_in_the_address_is_used_and_removed(start_studio: Any, open_tab: Any, runs_folder: Path) -> None:
    address = start_studio(folder=runs_folder, token=TOKEN)
    tab = open_tab(address, "#token=50%25%2Fx")
    tab.wait_for_selector("text=reviews")
    assert tab.url == f"{address}/#/runs"


def test_a_missing_token_is_asked_for(start_studio: Any, open_tab: Any, runs_folder: Path) -> None:
    tab = open_tab(start_studio(folder=runs_folder, token=TOKEN), allow_status=401)
    for text in ("wrong", TOKEN):
        tab.wait_for_selector("dialog[open] >> text=This server requires a token")
        tab.fill("#token", text)
        tab.click("dialog[open] button:has-text('Continue')")
    tab.wait_for_selector("text=reviews")
    assert tab.locator("dialog[open]").count() == 0
