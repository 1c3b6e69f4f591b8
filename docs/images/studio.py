"""Take the pictures of docs/studio.md: every tab of a running studio, in a wide, a narrow and a dark window.

Needs the development tools and Chromium. Start the studio first: `python docs/images/studio.py http://127.0.0.1:8000`.
The runs that the pictures show are named below.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent
# The address of each tab, the element to wait for, and the elements to click before the picture is taken.
TABS = {
    "runs": ("#/runs", "tr[data-run]", ["tr[data-group] >> nth=0 >> button"]),
    "run": ("#/run/reviews", ".part-curves canvas", []),
    "details": ("#/run/reviews", ".part-curves canvas", [".part-predictions button", ".detail.confusion h3"]),
    "compare": ("#/compare?study=width", "figure canvas", []),
    "classify": (
        "#/playground?run=reviews&text=In+short,+the+keyboard+was+not+very+horrible.",
        "form button.primary",
        ["form button.primary", "#attribution-tokens .token >> nth=6"],
    ),
    "generate": (
        "#/playground?run=story&text=Once+upon+a+time",
        "form button.primary",
        ["form button.primary", "#generated .token >> nth=10"],
    ),
    "translate": (
        "#/playground?run=numbers&text=seven+minutes+to+four+in+the+morning",
        "form button.primary",
        ["form button.primary", "#target-tokens .token >> nth=2"],
    ),
    "attention": (
        "#/attention?run=numbers&text=seven+minutes+to+four+in+the+morning",
        "#heatmap[data-shown]",
        ["#thumbnails button >> nth=1"],
    ),
    "train": ("#/train", ".drop-zone", ["button:has-text('Use builtin:')", ".costs dt >> nth=0"]),
}
ELEMENTS = {"details": ".part-predictions"}  # of tabs whose picture shows only a part of the page
# Of tabs that need more than the height of the window. A part of a page must fit, or the menu would cover it.
HEIGHTS = {"attention": 1580, "details": 6000, "train": 2330}
WINDOWS = {"wide": (1280, 900, "light"), "narrow": (420, 900, "light"), "dark": (1280, 900, "dark")}


def take_picture(page: Page, address: str, tab: str, picture: Path) -> None:
    """Open a tab, wait until its content is drawn, and write a picture of the window."""
    fragment, ready, clicks = TABS[tab]
    page.goto(f"{address}/{fragment}")
    page.wait_for_selector(ready)
    for element in clicks:
        page.click(element)
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(800)
    part = page.locator(ELEMENTS[tab]) if tab in ELEMENTS else page
    part.screenshot(path=picture)


def main() -> None:
    """Write the pictures beside this script, for all tabs or for those that are named after the address."""
    address, *tabs = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for tab in tabs or TABS:
            for window, (width, height, scheme) in WINDOWS.items():
                size = {"width": width, "height": HEIGHTS.get(tab, height)}
                page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
                take_picture(page, address.rstrip("/"), tab, FOLDER / f"studio-{tab}-{window}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
