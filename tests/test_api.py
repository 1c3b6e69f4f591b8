"""The Python interface, as a program uses it: more than once, in any order, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import triform

TINY = {"model": {"d_model": 16, "n_heads": 2, "n_layers": 1}, "device": "cpu", "quiet": True}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n % 7}\n" for n in range(60)), encoding="utf-8")
    return str(path)


def test_train_and_load_can_be_called_in_any_order_and_again(rows: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run = triform.train("classify", data=rows, out=tmp_path / name, train={"max_steps": 2}, **TINY)
        assert triform.load(run.path).predict(["thing 3"]) == run.predict(["thing 3"])


def test_opening_a_run_leaves_the_callers_random_numbers_alone(rows: str, tmp_path: Path) -> None:
    run = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    triform.load(run.path, device="cpu")
    assert torch.rand(3).equal(expected)


def test_aligned_files_may_be_named_with_a_comma_everywhere(tmp_path: Path) -> None:
    for name, words in (("a", "one two"), ("b", "un deux")):
        (tmp_path / name).write_text("".join(f"{words} {n}\n" for n in range(30)), encoding="utf-8")
    aligned_files = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    run = triform.train(
        "translate", data=aligned_files, valid=aligned_files, out=tmp_path / "run", train={"max_steps": 2}, **TINY
    )
    assert run.config.data.source == str(tmp_path / "a")
    assert run.evaluate(aligned_files)["pairs"] == 30
    assert run.evaluate()["pairs"] == 30


def test_a_setting_of_one_layer_replaces_its_twin_of_a_lower_one(rows: str, tmp_path: Path) -> None:
    run = triform.train(
        "classify", preset="speeches-classifier", data=rows, out=tmp_path / "run", train={"max_steps": 2},
        device="cpu", quiet=True,
    )  # fmt: skip
    assert (run.config.train.max_steps, run.config.train.epochs) == (2, 0)


# Rust's memory is not seen by tracemalloc: a process of its own is measured from outside.
MEASURE_SCRIPT = """
import resource, sys
import torch, triform.launch
from triform.tasks import TASKS
from triform.config.settings import build_config
from pathlib import Path
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
settings = {"task": "generate", "data.train": sys.argv[1], "tokenizer.kind": sys.argv[2], "tokenizer.vocab_size": 0,
            "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1}
TASKS["generate"].prepare(build_config(settings), Path(sys.argv[3]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_long_text_is_prepared_in_little_memory(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("ru_maxrss is counted in kilobytes on Linux only")
    peaks = []
    for size in (1, 4):
        text = tmp_path / f"{size}.txt"
        lines = "".join(
            f"the {n * 7919 % 997} houses of {n * 31 % 89} streets are {n % 13}.\n" for n in range(90_000)
        )
        text.write_text(lines * size, encoding="utf-8")
        command = [sys.executable, "-c", MEASURE_SCRIPT, str(text), "bpe", str(tmp_path / f"run{size}")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks.append(int(completed.stdout))
    assert peaks[1] < peaks[0] + 60, f"four times the text takes {peaks[1]} MB instead of {peaks[0]} MB"


def test_a_translator_with_two_vocabularies_can_be_made_again_from_its_config(tmp_path: Path) -> None:
    lines = [f"one two {n}\tun deux trois quatre {n} {n % 9}" for n in range(40)]
    (tmp_path / "pairs.tsv").write_text("\n".join([*lines, "alone\t", "\tseul"]) + "\n", encoding="utf-8")
    settings = {"data": str(tmp_path / "pairs.tsv"), "tokenizer": {"kind": "word", "joint_vocab": False}}
    run = triform.train("translate", out=tmp_path / "one", train={"max_steps": 2}, **settings, **TINY)
    retrained = triform.train(
        "translate", config=run.path / "config.toml", out=tmp_path / "two", device="cpu", quiet=True
    )
    assert retrained.predict(["one two 3"]) == run.predict(["one two 3"])
    events = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "pairs with an empty side were skipped" in events


@pytest.mark.parametrize("value", [0, None, 3.5, b"bytes"])
def test_only_texts_can_be_predicted(value: object, rows: str, tmp_path: Path) -> None:
    run = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY)
    with pytest.raises(triform.DataError, match="expected texts"):
        run.predict(["thing", value])  # type: ignore[list-item]


def test_a_run_is_shown_in_one_line(rows: str, tmp_path: Path) -> None:
    run = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY)
    parameters = sum(parameter.numel() for parameter in run.task.model.parameters())
    expected = f"Run(task='classify', path='{run.path}', parameters={parameters:,}, device='cpu', precision='fp32')"
    assert repr(run) == expected
    assert repr(triform.load(run.path, device="cpu", precision="bf16")) == expected.replace("fp32", "bf16")


def test_a_classifier_of_one_label_such_as_a_published_ranker_is_shown_too(rows: str, tmp_path: Path) -> None:
    run = triform.train("classify", data=rows, out=tmp_path / "run", train={"max_steps": 2}, **TINY)
    run.task.sizes = replace(run.task.sizes, n_labels=1)
    assert repr(run).startswith("Run(task='classify'")


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    assert dir(triform) == sorted([*triform.__all__, "__version__"])
    assert all(hasattr(triform, name) for name in dir(triform))
