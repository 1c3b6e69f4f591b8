"""What most tests of training read."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A table of 90 labelled texts."""
    path = tmp_path / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)
