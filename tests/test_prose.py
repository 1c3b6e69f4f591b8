"""Pages, messages and docstrings avoid the phrases of `banned_phrases.txt`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PHRASES = [
    line
    for line in (ROOT / "tests" / "banned_phrases.txt").read_text(encoding="utf-8").splitlines()
    if line[:1] != "#"
]
BANNED = re.compile(rf"\b(?:{'|'.join(re.escape(phrase) for phrase in sorted(PHRASES, key=len, reverse=True))})\b")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCE = ROOT / "src" / "triform"
SAMPLE_TEXTS = SOURCE / "data" / "builtin"  # text to learn from, not text for the reader
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPECIFICATION_CODE = re.compile(r"\bR[0-4]\b(?!\^)")  # numbers of our specification; users know systems by name


def find_banned(text: str) -> list[str]:
    """Return the banned phrases of a text, whose line breaks and emphasis do not count."""
    return BANNED.findall(" ".join(text.lower().replace("*", "").split()))


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string and docstring of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_banned_phrase(page: Path) -> None:
    assert not find_banned(CODE_BLOCK.sub("", page.read_text(encoding="utf-8")))


def test_no_message_or_docstring_has_a_banned_phrase() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(banned)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if SAMPLE_TEXTS not in path.parents
        for line, text in strings(path)
        if (banned := find_banned(text))
    ]
    assert not problems, "\n".join(problems)


def test_no_page_or_message_uses_a_code_of_the_specification() -> None:
    texts = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    texts += [(path, text) for path in SOURCE.rglob("*.py") for _, text in strings(path)]
    texts += [(path, path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.toml")]
    assert not [(path.name, code) for path, text in texts for code in SPECIFICATION_CODE.findall(text)]


def test_a_banned_phrase_is_found_across_lines_and_emphasis() -> None:
    assert find_banned("It *stands in\n  the* way by  itself.") == ["stands in the way", "by itself"]
    assert not find_banned("The file was told to stand by.")
