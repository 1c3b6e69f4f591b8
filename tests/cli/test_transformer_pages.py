"""The series docs/transformer: its model is trained, every block runs, and prints what the pages show.

Run this file to write what the blocks print into the pages and into the data of the figures:

    python tests/cli/test_transformer_pages.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from triform.cli.main import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "transformer"
FIGURES = FOLDER / "figures"
PAGES = {page.name: page for page in sorted(FOLDER.glob("*.md"))}
# A block of Python and, if it prints something, the output that the page shows after it.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?")
TOLERANCE = 0.15  # training amplifies rounding: between processors, scores differed by 0.05


def train_model(folder: Path) -> None:
    """Run the first command of the series in a folder, with fewer validations, which do not change the weights."""
    page = PAGES["index.md"].read_text(encoding="utf-8")
    command = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0].replace("\\\n", " ")
    arguments = [*shlex.split(command.splitlines()[0])[1:], "--set", "train.eval_every=400", "--quiet"]
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()) as errors:
        assert not app(arguments, prog_name="triform", standalone_mode=False), errors.getvalue()


def run_page(page: str) -> list[tuple[str, str]]:
    """Run the blocks of a page in the current folder; return what each prints beside what the page shows."""
    module = ModuleType(page)
    outputs = []
    with np.printoptions():  # the pages change how numbers are printed
        for code, page_output in BLOCK.findall(PAGES[page].read_text(encoding="utf-8")):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, page, "exec"), module.__dict__)
            outputs.append((printed.getvalue(), page_output))
    torch.set_printoptions(profile="default")
    return outputs


def differs(printed: str, page_output: str) -> bool:
    """Return whether two texts differ in more than the last digits of fractions.

    >>> differs("[0.10 5] a", "[0.11  5] a"), differs("[0.10 5] a", "[0.10 6] a"), differs("0.1", "0.3")
    (False, True, True)
    """
    if "".join(NUMBER.sub("#", printed).split()) != "".join(NUMBER.sub("#", page_output).split()):
        return True
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(page_output), strict=True)
    return any(abs(float(a) - float(b)) > TOLERANCE * max(1, abs(float(b))) for a, b in pairs)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    train_model(folder)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_print_what_it_shows(
    page: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    outputs = run_page(page)
    assert outputs
    for printed, page_output in outputs:
        assert not differs(printed, page_output), f"printed:\n{printed}\nshown:\n{page_output}"


def test_every_page_starts_with_the_same_block() -> None:
    blocks = {name: BLOCK.findall(page.read_text(encoding="utf-8"))[0][0] for name, page in PAGES.items()}
    start = blocks["index.md"]
    assert not [name for name, block in blocks.items() if "run = scratch.load" in block and block != start]


def load_make() -> Any:
    """Return the module that writes the data of the figures."""
    spec = importlib.util.spec_from_file_location("make_figures", FIGURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_difference(written: Any, computed: Any, path: str = "data") -> str:
    """Return where two nested values differ by more than the tolerance, or an empty string."""
    if isinstance(computed, float) and isinstance(written, float | int):
        is_close = abs(written - computed) <= TOLERANCE * max(1, abs(computed))
        return "" if is_close else f"{path}: {written} is written, {computed} was computed"
    if isinstance(computed, dict | list | tuple) and len(written) == len(computed):
        keys = list(computed) if isinstance(computed, dict) else range(len(computed))
        differences = (find_difference(written[key], computed[key], f"{path}.{key}") for key in keys)
        return next(filter(None, differences), "")
    return "" if written == computed else f"{path}: {written} is written, {computed} was computed"


def test_the_data_of_the_figures_are_those_of_the_model(workspace: Path) -> None:
    make = load_make()
    written, computed = make.read_data(), make.collect(str(workspace / "runs" / "steps"))
    for data in (written, computed):  # nearly equal probabilities may change their order
        data["stream"] = [
            {"name": stage["name"], "best": [[p for _, p in token] for token in stage["best"]]}
            for stage in data["stream"]
        ]
    assert not find_difference(written, computed)
    written["layers"][0]["q"][3][5] += 0.5
    assert "data.layers.0.q.3.5" in find_difference(written, computed)


def update_page(page: str) -> None:
    """Write what the blocks print into the page."""
    printed = iter([text for text, _ in run_page(page)])

    def replace(match: re.Match[str]) -> str:
        output = "\n".join(line.rstrip() for line in next(printed).splitlines())
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{output}\n```\n" if output else "")

    PAGES[page].write_text(BLOCK.sub(replace, PAGES[page].read_text(encoding="utf-8")), encoding="utf-8")


def update(folder: Path, pages: list[str]) -> None:
    """Write what the model gives into the pages and into the data of the figures."""
    if not (folder / "runs" / "steps" / "config.toml").exists():
        train_model(folder)
    os.chdir(folder)
    for page in pages or PAGES:
        update_page(page)
    load_make().write_data("runs/steps")


if __name__ == "__main__":
    update(Path(tempfile.mkdtemp()), sys.argv[1:])
