"""`--precision` and `load(precision=...)`: every task answers in each, and what cannot be had is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import triform as package
from triform.errors import ConfigError
from triform.nn import quantize
from triform.nn.precision import BF16_UNITS

Command = Any  # `triform(...)` of conftest: it gives an Answer
RUNS = ("classifier", "writer", "translator")
TEXTS = {"classifier": "the soup was lovely", "writer": "3 birds", "translator": "one and two"}
LOWER = ["bf16", pytest.param("int8", marks=pytest.mark.skipif(bool(quantize.trouble()), reason="no int8 here"))]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> tuple[Path, str]:
    return request.getfixturevalue(request.param), TEXTS[request.param]


@pytest.mark.parametrize("kind", LOWER)
def test_every_task_predicts_and_evaluates_in_lower_precision(kind: str, run: tuple[Path, str]) -> None:
    path, text = run
    exact = package.load(path, device="cpu", precision="fp32")
    opened = package.load(path, device="cpu", precision=kind)
    assert (exact.precision, opened.precision) == ("fp32", kind)
    assert opened.predict([text, text])[0].input == text
    held_out, wanted = opened.evaluate(), exact.evaluate()
    assert held_out["loss"] == pytest.approx(wanted["loss"], rel=0.02)
    assert held_out["loss"] != wanted["loss"]
    assert all(math.isfinite(score) for score in held_out.values())


@pytest.mark.parametrize("kind", LOWER)
def test_explaining_reads_the_weights_as_they_were_trained(kind: str, classifier: Path, tmp_path: Path) -> None:
    pages = []
    for each in ("fp32", kind):
        opened = package.load(classifier, device="cpu", precision=each)
        pages.append(opened.explain(TEXTS["classifier"]).save(tmp_path / f"{each}.html").read_text("utf-8"))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("has_units", [False, True], ids=["without bf16 units", "with bf16 units"])
def test_auto_on_a_cpu_is_fp32_bit_for_bit(
    has_units: bool, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit in BF16_UNITS:
        monkeypatch.setattr(torch.cpu, unit, lambda: has_units)
    opened = package.load(classifier, device="cpu")
    assert opened.precision == "fp32"
    exact = package.load(classifier, device="cpu", precision="fp32")
    assert opened.predict(["the soup"]) == exact.predict(["the soup"])


@pytest.mark.parametrize("kind", ["auto", "fp32", *LOWER])
def test_the_commands_take_a_precision(triform: Command, kind: str, classifier: Path) -> None:
    answer = triform("predict", classifier, "the soup", "--precision", kind, "--device", "cpu", "--json").json
    assert sum(answer[0]["probabilities"].values()) == pytest.approx(1)
    found = triform("evaluate", classifier, "--precision", kind, "--device", "cpu", "--json").json
    assert found["sets"]["valid"]["rows"] > 0
    assert found["precision"] == ("fp32" if kind == "auto" else kind)


@pytest.mark.parametrize("command", [("predict", "x"), ("evaluate",)])
def test_an_unknown_precision_is_refused(triform: Command, classifier: Path, command: tuple[str, ...]) -> None:
    refusal = triform(command[0], classifier, *command[1:], "--precision", "int4").refusal
    assert refusal == "unknown precision 'int4'; choose from auto, fp32, bf16, int8"


def test_int8_on_a_machine_without_it_says_what_to_use(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "trouble", lambda: "no int8 kernels")
    arguments = ("predict", classifier, "x", "--device", "cpu", "--precision")
    refusal = triform(*arguments, "int8").refusal
    assert refusal == "precision int8 is not available on this machine (no int8 kernels); use fp32"
    assert triform(*arguments, "auto").code == 0


def test_int8_on_cuda_is_refused_before_weights_are_read(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="int8 is for the CPU"):
        package.load(classifier, device="cuda", precision="int8")


@pytest.mark.parametrize("kind", LOWER)
def test_lower_precision_is_shown_where_it_is_used(triform: Command, classifier: Path, kind: str) -> None:
    note = f"note: computed in {kind}; answers may differ a little from fp32\n"
    how = ("--precision", kind, "--device", "cpu")
    answer = triform("predict", classifier, "the soup", *how, "--json")
    assert note in answer.err
    assert answer.json[0]["precision"] == kind
    assert note in triform("evaluate", classifier, *how).err
    answer = triform("predict", classifier, "the soup", "--device", "cpu", "--json")
    assert "precision" not in answer.json[0]
    assert "computed in" not in answer.err + triform("evaluate", classifier, "--device", "cpu").err
