"""The documentation site is built without a warning, loads nothing from elsewhere, and its search answers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOP_PAGES = {"changelog.md", "contributing.md"}  # made from pages at the top of the repository


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, DOCS / "site" / "build.py", "--out", folder / "site", "--work", folder / "work"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", DOCS / "site" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check"] = module  # dataclasses look the module up
    spec.loader.exec_module(module)
    return module


def find_paths(navigation: Any) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for entry in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from find_paths(entry)


def test_the_navigation_names_every_page_once() -> None:
    settings = tomllib.loads((DOCS / "site" / "zensical.toml").read_text(encoding="utf-8"))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | TOP_PAGES
    pages |= {page.relative_to(DOCS).with_suffix(".md").as_posix() for page in DOCS.rglob("*.ipynb")}
    assert sorted(find_paths(settings["project"]["nav"])) == sorted(pages)


class _Elements(HTMLParser):
    """Count the elements of an article by which GitHub's Markdown and that of the site can differ."""

    def __init__(self, text: str, *, article: bool) -> None:
        super().__init__()
        self.inside = not article
        self.counts = dict.fromkeys(("h2", "h3", "li", "pre", "table", "tr", "img"), 0)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = self.inside or tag == "article"
        if self.inside and tag in self.counts:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "article"


def test_a_page_has_the_same_lists_tables_and_blocks_as_on_github(site: Path) -> None:
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    different = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if re.search(r"^::: ", text, re.MULTILINE):
            continue  # a page made from docstrings
        built = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        counts = _Elements(built, article=True).counts
        expected = _Elements(parser.render(text), article=False).counts
        differing = [tag for tag in counts if counts[tag] != expected[tag]]
        different += [(page.name, tag, counts[tag], expected[tag]) for tag in differing]
    assert not different


def test_a_broken_link_a_missing_anchor_and_another_host_are_found(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="a%20b.html#x"></a><a href="a%20b.html#y"></a>'
        '<a href="none.html"></a><a href="https://example.org"></a><img src="//example.org/i.png">'
        '<style>p { background: url("https://example.org/b.png") }</style><link rel="canonical" href="https://e.org">'
    )
    (tmp_path / "a b.html").write_text('<p id="x" style="background: url(https://example.org/p.png)">')
    (tmp_path / "a.css").write_text('@import "https://example.org/a.css"; p { background: url(data:image/png) }')
    assert sorted(check.check_site(tmp_path)) == [
        "a b.html: the style loads https://example.org/p.png from another host",
        "a.css: the style loads https://example.org/a.css from another host",
        "index.html: loads //example.org/i.png from another host",
        "index.html: the link a%20b.html#y leads to no anchor",
        "index.html: the link none.html leads to no file",
        "index.html: the style loads https://example.org/b.png from another host",
    ]


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "scratch.html").read_text(encoding="utf-8")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') > 10
    assert "$" not in re.sub(r"<(code|pre|script)\b.*?</\1>", "", page, flags=re.DOTALL)


def test_the_search_of_the_site_answers_in_a_browser_and_nothing_leaves_the_page(site: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 420, "height": 900})
        requests: list[str] = []
        problems: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.get_by_placeholder("Search").fill("plateau factor")
        answer = page.locator("a", has_text="train.plateau_factor").first
        expect(answer).to_be_visible(timeout=30_000)
        answer.click()
        page.wait_for_url(re.compile(r"settings\.html"), timeout=30_000)
        for name in ("cli.html", "scratch.html"):
            page.goto((site / name).as_uri())
            # Code, tables and formulas scroll inside the page; the page does not.
            assert page.evaluate("document.documentElement.scrollWidth") <= 420, name
        browser.close()
    assert len(requests) > 10
    assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    assert not problems
