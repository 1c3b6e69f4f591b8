"""What the tests of all tabs assert."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def assert_fits(tab: Page) -> None:
    """Assert that the page is not wider than the window."""
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
