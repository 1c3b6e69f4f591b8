"""The frame of the page: tabs, keyboard, narrow windows, and addresses that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from browser_checks import assert_fits

TABS = ("Runs", "Compare", "Playground", "Attention", "Train")


def test_each_tab_opens_by_a_click_and_is_named(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio)
    for name in TABS:
        tab.click(f"#tabs >> text={name}")
        tab.wait_for_selector(f"h1:has-text('{name}')")
        assert tab.get_attribute(f"#tabs a:has-text('{name}')", "aria-current") == "page"
        assert tab.locator("#tabs a[aria-current]").count() == 1
        assert tab.title().startswith(name)


def test_the_keyboard_reaches_the_content_and_the_tabs(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/train")
    tab.wait_for_selector("h1")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "view"
    assert tab.url.endswith("#/train")


def test_every_tab_fits_a_narrow_window(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, width=420, dark=True)
    for name in TABS:
        tab.click(f"#tabs >> text={name}")
        tab.wait_for_selector(f"h1:has-text('{name}')")
        assert_fits(tab)


def test_the_page_asks_for_the_token_that_the_server_requires(
    runs_folder: Path, start_studio: Any, open_tab: Any
) -> None:
    address = start_studio(folder=runs_folder, token="open-sesame")
    tab = open_tab(address, "#/runs", allow_status=401)
    for token in ("wrong", "open-sesame"):
        tab.fill("dialog input", token)
        tab.keyboard.press("Enter")
        tab.wait_for_selector("dialog >> nth=0", state="attached" if token == "wrong" else "detached")
    tab.wait_for_selector("tr[data-run='reviews']")
    tab.click("a.run-name:has-text('reviews')")
    tab.wait_for_selector(".part-curves canvas")  # the stream has the token too


def test_the_token_in_the_address_is_used_and_removed(runs_folder: Path, start_studio: Any, open_tab: Any) -> None:
    address = start_studio(folder=runs_folder, token="secret")
    tab = open_tab(address, "#token=secret")
    tab.wait_for_selector("tr[data-run='reviews']")
    assert tab.url == f"{address}/#/runs"
    tab.reload()
    tab.wait_for_selector("tr[data-run='reviews']")


def test_an_address_without_a_tab_says_so(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/nowhere")
    assert tab.inner_text("h1") == "Not found"
    tab.click("#tabs >> text=Train")
    tab.wait_for_selector("h1:has-text('Train')")


def test_a_page_whose_server_does_not_answer_says_so_and_goes_on_when_it_does(studio: str, open_tab: Any) -> None:
    tab = open_tab(studio, "#/runs", allow_failures=True)
    tab.wait_for_selector("tr[data-run='reviews']")
    tab.route("**/api/runs", lambda route: route.abort())
    tab.wait_for_selector("#connection:has-text('The server does not answer.')")
    assert tab.locator("tr[data-run='reviews']").count() == 1  # what was loaded stays
    tab.unroute("**/api/runs")
    tab.wait_for_selector("#connection", state="hidden")
