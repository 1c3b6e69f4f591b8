"""Make the picture of the README: the attention page of a translator that is trained for it.

Needs the development tools, Chromium and a few minutes: `make pictures`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import triform

FOLDER = Path(__file__).parent
TEXT = "seven minutes to four in the morning"
QUERY = "quatre"  # the token whose weights the picture shows


def write_page(folder: Path) -> Path:
    """Train a translator on the built-in set and write the attention page of one sentence."""
    run = triform.train("translate", out=str(folder / "numbers"))
    page = folder / "maps.html"
    run.explain(TEXT).save(page)
    return page


def take_picture(page_file: Path, picture: Path) -> None:
    """Photograph the cross-attention of the last layer."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is missing; on Debian: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1160, "height": 900}, device_scale_factor=1)
        page.goto(page_file.as_uri())
        page.select_option("#map-select", index=2)  # encoder, decoder, cross
        page.select_option("#layer-select", index=1)
        page.locator("#queries > *", has_text=QUERY).click()
        page.wait_for_timeout(300)
        top = page.locator("#attention").bounding_box()
        last_row = page.locator("#heatmap").bounding_box()
        assert top is not None
        assert last_row is not None
        page.set_viewport_size({"width": 1160, "height": 1600})
        height = last_row["y"] + last_row["height"] - top["y"] + 14
        page.screenshot(path=picture, clip={"x": 0, "y": top["y"] - 10, "width": 1160, "height": height})
        browser.close()


def main() -> None:
    """Write the picture beside this script, or from a page that was made before: `make.py PAGE`."""
    picture = FOLDER / "attention.png"
    if len(sys.argv) > 1:
        take_picture(Path(sys.argv[1]).resolve(), picture)
        return
    with tempfile.TemporaryDirectory() as folder:
        take_picture(write_page(Path(folder)), picture)


if __name__ == "__main__":
    main()
