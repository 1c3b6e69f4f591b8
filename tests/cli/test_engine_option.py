"""`--engine` of `predict` and `evaluate`: the same texts from CTranslate2, and one line where it cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triform import load
from triform.errors import ConfigError

Command = Any  # `triform(...)` of conftest: it gives an Answer
GREEDY = ("--set", "decode.strategy=greedy", "--device", "cpu")
TEXTS = {"writer": "3 birds", "translator": "one and two"}


@pytest.mark.parametrize("name", TEXTS)
def test_both_engines_predict_the_same_text(
    triform: Command, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(name)
    answers = [
        triform("predict", run, TEXTS[name], *GREEDY, "--engine", engine, "--json").json
        for engine in ("auto", "torch", "ctranslate2")
    ]
    assert answers[0] == answers[1] == answers[2]
    (tmp_path / "in.txt").write_text(f"{TEXTS[name]}\n", encoding="utf-8")
    folder = ("predict", run, "--input", tmp_path / "in.txt", "--output", f"{tmp_path}/out/", *GREEDY)
    assert triform(*folder, "--engine", "ctranslate2").code == 0
    assert "engine" in triform(*folder).last_line  # another engine would continue the folder


def test_a_translator_is_evaluated_with_both_engines(triform: Command, translator: Path) -> None:
    reports = [
        triform("evaluate", translator, *GREEDY, "--engine", engine, "--json").json
        for engine in ("torch", "ctranslate2")
    ]
    assert reports[0] == reports[1]


def test_a_loaded_run_has_the_name_of_its_engine(writer: Path) -> None:
    run = load(writer, engine="ctranslate2")
    assert (run.engine, load(writer, device="cpu").engine) == ("ctranslate2", "torch")
    with pytest.raises(ConfigError, match=r"decode\.strategy is sample; set it to greedy, or use engine torch"):
        run.predict("3 birds")
    with pytest.raises(ConfigError, match="engine ctranslate2 is for the CPU, not for cuda"):
        load(writer, device="cuda", engine="ctranslate2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "writer", "3 birds", "--engine", "onnx"), "unknown engine 'onnx'; choose from auto, torch, "),
        (
            ("predict", "writer", "3 birds"),
            "engine ctranslate2 decodes greedily, and decode.strategy is sample; set ",
        ),
        (
            ("predict", "translator", "one", "--top", 2),
            "engine ctranslate2 decodes greedily, and decode.strategy is ",
        ),
        (("predict", "classifier", "soup"), "engine ctranslate2 does not support classifiers; use engine torch"),
        (
            ("predict", "writer", "3", "--precision", "bf16"),
            "engine ctranslate2 computes in fp32 or int8, not in bf16",
        ),
        (("evaluate", "writer"), "--engine ctranslate2 generates text, and the metrics of generate need none"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(
    triform: Command, arguments: tuple[str, ...], words: str, request: pytest.FixtureRequest
) -> None:
    command, name, *rest = arguments
    engine = () if "--engine" in rest else ("--engine", "ctranslate2")
    refusal = triform(command, request.getfixturevalue(name), *rest, *engine, "--device", "cpu").refusal
    assert refusal.startswith(words)
