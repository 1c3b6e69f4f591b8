"""A device whose memory is full: one line, whatever the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from triform.tasks.classify import ClassificationEvaluator, ClassificationPredictor


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_memory_that_is_full_is_one_line(
    command: str, triform: Any, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_memory(*inputs: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")

    monkeypatch.setattr(ClassificationPredictor, "predict", raise_out_of_memory)
    monkeypatch.setattr(ClassificationEvaluator, "evaluate", raise_out_of_memory)
    result = triform(command, str(classifier), *(["the soup"] if command == "predict" else []))
    assert result.code == 2
    assert result.err == (
        "triform: the device is out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.); "
        "use fewer or shorter texts, or --device cpu\n"
    )


PLAIN_ERRORS = [
    (MemoryError(), "this computer is out of memory (MemoryError)"),
    (MemoryError("Unable to allocate 9 TiB"), "this computer is out of memory (Unable to allocate 9 TiB)"),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: 1 bytes.\nx"
        ),
        "this computer is out of memory ([enforce fail",
    ),
    (RuntimeError("Storage size calculation overflowed with sizes=[9]"), "this computer is out of memory"),
    (OverflowError("int too large to convert to float"), "a number in a file or a setting is too large"),
    (RecursionError("maximum recursion depth exceeded"), "a file or a setting is nested too deeply"),
]


@pytest.mark.parametrize(("error", "message"), PLAIN_ERRORS)
def test_an_error_of_size_is_one_line_whatever_raised_it(
    error: Exception, message: str, triform: Any, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*inputs: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(ClassificationPredictor, "predict", failing)
    assert triform("predict", str(classifier), "the soup").refusal.startswith(message)


def test_any_other_error_is_still_a_bug_with_a_traceback(
    triform: Any, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*inputs: Any, **named: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(ClassificationPredictor, "predict", failing)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        triform("predict", str(classifier), "the soup")


def test_a_model_that_no_computer_holds_is_neither_trained_nor_checked(triform: Any, tmp_path: Path) -> None:
    large = ("--set", "model.d_model=65536", "--set", "model.n_layers=1000", "--set", "model.n_heads=4")
    sizes = ("--preset", "small", "--task", "generate", "--vocab-size", "50", "--max-len", "20")
    for command in (("train", "classify", "--out", tmp_path / "run"), ("check", *sizes)):
        assert "parameters, which need " in triform(*command, *large).refusal


CHILD_SCRIPT = """
import json, resource, sys, torch
import triform.launch, triform.cli.main
torch.zeros(10) @ torch.zeros(10)
status = open("/proc/self/status").read().split("VmSize:")[1].split()[0]
limit = int(status) * 1024 + (600 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["triform", *arguments]
    try:
        triform.cli.main.main()
    except SystemExit as ended:
        print("exit", ended.code, file=sys.stderr)
"""
TOO_LARGE_SETTINGS = {
    "parameters, which need": ("model.d_model=8192",),
    "training needs": ("model.d_model=2048", "model.n_layers=2", "model.d_ff=2048"),
    "this computer is out of memory": ("model.d_model=64", "model.d_ff=2000", "train.batch_size=200"),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and RLIMIT_AS")
def test_a_computer_with_little_memory_says_so_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "long.csv"
    data.write_text("text,label\n" + "".join(f"{'word ' * 4000},{n % 2}\n" for n in range(200)))
    base_command = [
        "train",
        "classify",
        "--data",
        str(data),
        "--device",
        "cpu",
        "--quiet",
        "--set",
        "data.max_len=4096",
    ]
    small = ["--set", "model.n_heads=2", "--set", "train.max_steps=1"]
    commands = [
        [
            *base_command,
            *small,
            "--out",
            str(tmp_path / str(n)),
            *(part for assignment in sets for part in ("--set", assignment)),
        ]
        for n, sets in enumerate(TOO_LARGE_SETTINGS.values())
    ]
    completed = subprocess.run(
        [sys.executable, "-c", CHILD_SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert "Traceback" not in completed.stderr
    lines = completed.stderr.splitlines()
    assert lines[1::2] == ["exit 2"] * 3, completed.stderr[-2000:]
    for line, message in zip(lines[::2], TOO_LARGE_SETTINGS, strict=True):
        assert line.startswith("triform: ")
        assert message in line
