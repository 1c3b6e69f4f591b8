"""The documentation names only pages, headings, files, classes, settings and arguments that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def find_headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, spelled as GitHub spells them."""
    anchors: set[str] = set()
    text = CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        label = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", label.lower()).replace(" ", "-")
        duplicates = (f"{anchor}-{number}" for number in range(1, 1000))
        anchors.add(anchor if anchor not in anchors else next(name for name in duplicates if name not in anchors))
    return anchors


def find_broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file or to no heading; other sites are not asked."""
    broken = []
    for link in LINK.findall(CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"(https?|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        is_heading = not anchor or (target.suffix == ".md" and target.exists() and anchor in find_headings(target))
        if not target.exists() or not is_heading:
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_resolves(page: Path) -> None:
    assert not find_broken_links(page)


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n[a](#one-two-three) [b](#four) [c](none.md) ![d](page.md#one-two-three)\n"
        "```\n[e](none.md)\n# Four\n```\n[f](https://example.org/none)\n",
        encoding="utf-8",
    )
    assert find_broken_links(page) == ["#four", "none.md"]


@pytest.mark.parametrize("page", ["architecture.md", "reading-guide.md", "glossary.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", text))
    missing = [path for path in paths if not any((ROOT / base / path).exists() for base in ("", "src/triform"))]
    assert not missing


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/index.md")]
    names = [page.relative_to(ROOT / "docs").as_posix() for page in pages]
    assert not [name for name in names if f"({name})" not in index + "(index.md)"]


def test_the_ratios_of_the_readme_are_those_of_the_benchmarks() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    benchmarks = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    ratios = [ratio for line in lines if line.startswith("|") for ratio in re.findall(r"\d+\.\d+×", line)]
    assert ratios
    assert not [ratio for ratio in ratios if f" {ratio}" not in benchmarks]


def test_the_glossary_names_classes_and_packages_that_exist() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = [line.strip("|").rpartition("|")[2] for line in page.splitlines() if line.startswith("| ")]
    terms = {term for cell in cells for term in re.findall(r"`([\w.]+)`", cell)}
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "src").rglob("*.py")
    }
    classes = {
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert len(terms) > 40
    assert not terms - modules - classes, "the glossary names what does not exist"


def test_the_words_of_the_glossary_are_settings_that_exist() -> None:
    from triform.config.settings import SETTING_TYPES

    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    settings = set(re.findall(r"`((?:model|train|decode|data|tokenizer)\.\w+)`", page))
    assert len(settings) >= 8
    assert not settings - SETTING_TYPES.keys()


def test_documented_arguments_exist() -> None:
    unknown = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            documented = re.findall(r"^    \**(\w+):", section[1], re.MULTILINE) if section else []
            parameters = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            unknown += [f"{path.name}: {node.name}: {name}" for name in documented if name not in parameters]
    assert not unknown, unknown
