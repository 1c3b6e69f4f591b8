"""docs/scratch.md is run: its snippets, one after the other, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

from triform.scratch import supported

PAGE = (Path(__file__).parents[2] / "docs" / "scratch.md").read_text(encoding="utf-8")
SOURCE = Path(supported.__file__).parent


def test_the_snippets_run() -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) >= 8
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/scratch.md", "exec"), namespace)


def test_every_file_that_is_named_exists_and_every_known_value_is_named() -> None:
    assert all((SOURCE / name).exists() for name in re.findall(r"`(\w+\.py)`", PAGE))
    for value in (
        *supported.MODEL_ALLOWED["positions"],
        *supported.MODEL_ALLOWED["attention_score"],
        *supported.MODEL_ALLOWED["activation"],
    ):
        assert f"`{value}`" in PAGE
    assert all(schedule in PAGE for schedule in supported.TRAIN_ALLOWED["schedule"])
