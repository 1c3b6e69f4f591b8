"""The pages that describe the code name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "max_lines"), [("architecture.md", 200), ("reading-guide.md", 200), ("glossary.md", 200)]
)
def test_every_file_that_a_page_names_exists(page: str, max_lines: int) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= max_lines
    paths = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", text))
    missing = [path for path in paths if not any((ROOT / base / path).exists() for base in ("", "src/triform"))]
    assert not missing
    links = set(re.findall(r"\]\(([\w-]+\.md)\)", text))
    assert not [link for link in links if not (ROOT / "docs" / link).exists()]
