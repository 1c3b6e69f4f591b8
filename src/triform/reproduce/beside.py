"""What is reached without a Transformer, on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from triform.baselines import fit
from triform.config import DataConfig
from triform.data.readers import read_aligned, read_pieces, read_rows
from triform.metrics import Scores
from triform.reproduce.material import Material
from triform.settings import build
from triform.tasks.generate import training_part
from triform.text import load_tokenizer


def baselines(material: Material) -> tuple[dict[str, dict[str, Scores]], dict[str, str]]:
    """The scores of each baseline by set, and the reasons of those that could not be fitted."""
    train, read = _rows(material)
    tokens: dict[str, Any] = {}
    if names := next((each.vocabulary for each in material.system.variants if each.vocabulary), ()):
        tokenizer = load_tokenizer(material.vocabulary(names))
        tokens = {"tokenize": tokenizer.encode, "vocab_size": tokenizer.vocab_size}
    ready = fit(material.system.task, train, **tokens)
    found: dict[str, dict[str, Scores]] = {}
    reasons = dict(ready.reasons)
    for test, path in material.tests().items():
        if test in ("train", "valid") and path:  # judged to compare settings, not systems
            continue
        table = ready.scores(read(path))
        reasons |= table.reasons
        for name, scores in table.items():
            if scores:
                found.setdefault(name, {})[test] = {key: float(value) for key, value in scores.items()}
    return found, reasons


def _rows(material: Material) -> tuple[Iterable[Any], Callable[[str], Iterable[Any]]]:
    """The training rows, and what reads a test set; an empty path is what is held out of the training file."""
    system, layout = material.system, DataConfig()
    if system.task == "translate":
        files = [str(material.files[system.files[side]]) for side in ("data.source", "data.target")]
        return read_aligned(*files), lambda path: read_aligned(*path.split(","))
    train = material.path(system.files["data.train"])
    if system.task == "classify":
        return read_rows(train, layout), lambda path: read_rows(path, layout)
    held = "" in system.tests.values()
    stop = training_part(build({"task": "generate", "data.train": train})) if held else None

    def pieces(path: str) -> Iterable[Any]:
        return read_pieces(path, layout) if path else read_pieces(train, layout, start=stop or 0)

    return read_pieces(train, layout, stop=stop), pieces
