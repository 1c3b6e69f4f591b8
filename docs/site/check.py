"""What a built site must not have: links that lead nowhere, and pages that load something from another host."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Tags that load what they name as soon as the page opens.
LOADING = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "image": "href", "input": "src", "link": "href",
    "object": "data", "script": "src", "source": "src", "track": "src", "use": "href", "video": "src",
}  # fmt: skip
NOT_LOADED = {"canonical", "next", "prev", "license", "author"}  # `rel` of a link that is only a statement
OTHER_HOST = re.compile(r"^(?:https?:)?//", re.IGNORECASE)
CSS_URL = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


@dataclass
class Page(HTMLParser):
    """The anchors, links and loaded files of an HTML page."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    in_style: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag defines, links to and loads."""
        values = {name.removeprefix("xlink:"): value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self.in_style = tag == "style"
        self.styles.append(values.get("style", ""))
        if tag in ("a", "area") and "href" in values:
            self.links.append(values["href"])
        target = values.get(LOADING.get(tag, ""), "")
        if target and not (tag == "link" and values.get("rel") in NOT_LOADED):
            self.loaded.append(target)
        self.loaded += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]

    def handle_data(self, data: str) -> None:
        """Keep the text of style sheets in the page."""
        if self.in_style:
            self.styles.append(data)

    __hash__ = object.__hash__


def check_site(folder: Path) -> list[str]:
    """Return what is wrong with the pages of a folder, one line for each problem."""
    pages = {path.resolve(): Page(path.resolve()) for path in sorted(folder.rglob("*.html"))}
    problems = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for target in page.loaded:
            if OTHER_HOST.match(target):
                problems.append(f"{name}: loads {target} from another host")
        problems += [f"{name}: {problem}" for text in page.styles for problem in check_style(text)]
        for target in (*page.links, *page.loaded):
            if problem := check_link(page, target, pages):
                problems.append(f"{name}: {problem}")
    for path in sorted(folder.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        problems += [f"{path.relative_to(folder)}: {problem}" for problem in check_style(text)]
    return problems


def check_style(text: str) -> list[str]:
    """Return what a style sheet loads from another host."""
    return [f"the style loads {url} from another host" for url in CSS_URL.findall(text)]


def check_link(page: Page, link: str, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link to a file or an anchor of the site; other hosts are not asked."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    # The page of a wrong address does not know where it is, so its links start at the top.
    target = page.path if not parts.path else (page.path.parent / unquote(parts.path).lstrip("/")).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return f"the link {link} leads to no file"
    anchor = unquote(parts.fragment)
    if anchor and anchor != "__top" and target in pages and anchor not in pages[target].anchors:
        return f"the link {link} leads to no anchor"
    return None
