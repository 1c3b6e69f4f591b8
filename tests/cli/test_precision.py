"""`--precision` and `load(precision=...)`: every task answers in each, and what cannot be had is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import triform as package
from triform.errors import ConfigError
from triform.nn.kernels import int8
from triform.nn.kernels.precision import BF16_CPU_FLAGS

Command = Any  # `triform(...)` of conftest: it gives an Answer
RUNS = ("classifier", "writer", "translator")
TEXTS = {"classifier": "the soup was lovely", "writer": "3 birds", "translator": "one and two"}
LOWER_PRECISIONS = [
    "bf16",
    pytest.param("int8", marks=pytest.mark.skipif(bool(int8.int8_unavailable_reason()), reason="no int8 here")),
]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> tuple[Path, str]:
    return request.getfixturevalue(request.param), TEXTS[request.param]


@pytest.mark.parametrize("kind", LOWER_PRECISIONS)
def test_every_task_predicts_and_evaluates_in_lower_precision(kind: str, run: tuple[Path, str]) -> None:
    path, text = run
    exact = package.load(path, device="cpu", precision="fp32")
    loaded_run = package.load(path, device="cpu", precision=kind)
    assert (exact.precision, loaded_run.precision) == ("fp32", kind)
    assert loaded_run.predict([text, text])[0].input == text
    held_out, expected = loaded_run.evaluate(), exact.evaluate()
    assert held_out["loss"] == pytest.approx(expected["loss"], rel=0.02)
    assert held_out["loss"] != expected["loss"]
    assert all(math.isfinite(score) for score in held_out.values())


@pytest.mark.parametrize("kind", LOWER_PRECISIONS)
def test_explaining_reads_the_weights_as_they_were_trained(kind: str, classifier: Path, tmp_path: Path) -> None:
    pages = []
    for precision in ("fp32", kind):
        loaded_run = package.load(classifier, device="cpu", precision=precision)
        pages.append(
            loaded_run.explain(TEXTS["classifier"]).save(tmp_path / f"{precision}.html").read_text("utf-8")
        )
    assert pages[0] == pages[1]


@pytest.mark.parametrize("has_units", [False, True], ids=["without bf16 units", "with bf16 units"])
def test_auto_on_a_cpu_is_fp32_bit_for_bit(
    has_units: bool, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit in BF16_CPU_FLAGS:
        monkeypatch.setattr(torch.cpu, unit, lambda: has_units)
    loaded_run = package.load(classifier, device="cpu")
    assert loaded_run.precision == "fp32"
    exact = package.load(classifier, device="cpu", precision="fp32")
    assert loaded_run.predict(["the soup"]) == exact.predict(["the soup"])


@pytest.mark.parametrize("kind", ["auto", "fp32", *LOWER_PRECISIONS])
def test_the_commands_take_a_precision(triform: Command, kind: str, classifier: Path) -> None:
    result = triform("predict", classifier, "the soup", "--precision", kind, "--device", "cpu", "--json").json
    assert sum(result[0]["probabilities"].values()) == pytest.approx(1)
    report = triform("evaluate", classifier, "--precision", kind, "--device", "cpu", "--json").json
    assert report["sets"]["valid"]["rows"] > 0
    assert report["precision"] == ("fp32" if kind == "auto" else kind)


@pytest.mark.parametrize("command", [("predict", "x"), ("evaluate",)])
def test_an_unknown_precision_is_refused(triform: Command, classifier: Path, command: tuple[str, ...]) -> None:
    refusal = triform(command[0], classifier, *command[1:], "--precision", "int4").refusal
    assert refusal == "unknown precision 'int4'; choose from auto, fp32, bf16, int8"


def test_int8_on_a_machine_without_it_says_what_to_use(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "int8_unavailable_reason", lambda: "no int8 kernels")
    arguments = ("predict", classifier, "x", "--device", "cpu", "--precision")
    refusal = triform(*arguments, "int8").refusal
    assert refusal == "precision int8 is not available on this machine (no int8 kernels); use fp32"
    assert triform(*arguments, "auto").code == 0


def test_int8_on_cuda_is_refused_before_weights_are_read(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="int8 is for the CPU"):
        package.load(classifier, device="cuda", precision="int8")


@pytest.mark.parametrize("kind", LOWER_PRECISIONS)
def test_lower_precision_is_shown_where_it_is_used(triform: Command, classifier: Path, kind: str) -> None:
    note = f"note: computed in {kind}; results may differ a little from fp32\n"
    options = ("--precision", kind, "--device", "cpu")
    result = triform("predict", classifier, "the soup", *options, "--json")
    assert note in result.err
    assert result.json[0]["precision"] == kind
    assert note in triform("evaluate", classifier, *options).err
    result = triform("predict", classifier, "the soup", "--device", "cpu", "--json")
    assert "precision" not in result.json[0]
    assert "computed in" not in result.err + triform("evaluate", classifier, "--device", "cpu").err
