"""The figures of docs/transformer in a browser: each is built, answers mouse and keys, and loads only its files."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FOLDER = Path(__file__).parents[1] / "docs" / "transformer"
PAGES = sorted(FOLDER.glob("*.md"))
FIGURES = [name for page in PAGES for name in re.findall(r'data-figure="(\w+)"', page.read_text("utf-8"))]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A narrow tab with all figures on one page."""
    requirements = {"playwright": importlib.util.find_spec("playwright"), "chromium": shutil.which("chromium")}
    if missing := [name for name, is_there in requirements.items() if not is_there]:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    page = tmp_path_factory.mktemp("figures") / "page.html"
    figures = "".join(f'<div data-figure="{name}"></div>' for name in FIGURES)
    script = (FOLDER / "figures" / "load.js").as_uri()
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><body class="md-typeset" style="margin: 10px">{figures}'
        f'<script src="{script}"></script>',
        encoding="utf-8",
    )
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 420, "height": 900})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None,
        )
        tab.goto(page.as_uri())
        tab.wait_for_selector(f'[data-built="{FIGURES[-1]}"]')
        yield tab
        browser.close()
    assert not complaints


def find_figure(tab: Page, name: str) -> Locator:
    return tab.locator(f'[data-built="{name}"]')


def test_every_page_with_a_figure_loads_the_figures_and_all_kinds_are_used(tab: Page) -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert ("data-figure=" in text) == ("figures/load.js" in text), page.name
    assert sorted(FIGURES) == [
        *("distance", "embedding", "gradients", "head", "heads", "masks", "positions", "stream"),
    ]
    for name in FIGURES:
        assert find_figure(tab, name).locator("figcaption").count() == 1
    assert tab.evaluate("document.documentElement.scrollWidth") <= 420


def test_a_head_shows_the_weights_of_a_query_and_follows_the_keyboard(tab: Page) -> None:
    figure = find_figure(tab, "head")
    row = figure.locator("tbody tr").first
    assert float(row.locator(".step-number").nth(1).inner_text()) > 0.9  # the full stop reads the name
    figure.get_by_role("group", name="query").get_by_role("button", name="mill").click()
    tab.keyboard.press("ArrowLeft")  # "the", which may read seven tokens
    assert figure.locator('[aria-label="query"] [aria-pressed="true"]').inner_text() == "the"
    assert figure.locator(".step-masked").count() == 7
    figure.locator("input[type=range]").fill("0")  # without scores, all weights are equal
    assert row.locator(".step-number").nth(1).inner_text() == "0.14"


def test_masks_can_be_combined(tab: Page) -> None:
    figure = find_figure(tab, "masks")
    detail = figure.locator(".step-detail")
    assert detail.inner_text() == "105 of 196 pairs may be read"
    figure.get_by_label("window").check()
    assert detail.inner_text() == "60 of 196 pairs may be read"  # 1 + 2 + 3 + 4 + 10 · 5
    figure.get_by_label("padding").check()
    assert detail.inner_text() == "50 of 196 pairs may be read"
    figure.get_by_label("causal").uncheck()
    figure.get_by_label("window").uncheck()
    assert detail.inner_text() == "140 of 196 pairs may be read"


def test_the_product_of_two_positions_depends_on_their_distance_alone(tab: Page) -> None:
    figure = find_figure(tab, "positions")
    products = []
    for position in ("2", "20"):
        figure.get_by_role("slider", name="position").fill(position)
        products.append(figure.locator(".step-detail").inner_text().rpartition(" ")[2])
    assert products[0] == products[1] == "12.27"
    figure.get_by_role("slider", name="shift").fill("0")
    assert figure.locator(".step-detail").inner_text().endswith(" 16.00")


def test_the_other_figures_show_what_is_chosen(tab: Page) -> None:
    embedding = find_figure(tab, "embedding")
    embedding.get_by_role("button", name="bell").hover()
    assert embedding.locator(".step-detail").inner_text().startswith("bell → id ")
    heads = find_figure(tab, "heads")
    assert heads.locator("svg").count() == 8
    assert "Ada 0.9" in heads.inner_text()
    stream = find_figure(tab, "stream")
    assert stream.locator(".step-stage").last.locator(".step-name").first.inner_text() == "She"
    gradients = find_figure(tab, "gradients")
    gradients.get_by_role("button", name="near").click()
    assert gradients.locator(".step-detail").inner_text() == 'loss of "near" after "bell": 0.00'
    distance = find_figure(tab, "distance")
    assert distance.locator(".step-legend").inner_text().split()[:2] == ["RNN", "1.5e-6"]
    distance.locator("input").fill("0")
    assert distance.locator(".step-legend").inner_text().split()[:2] == ["RNN", "0.92"]
