"""`triform check` and what `triform doctor` says of attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triform.explain.checks import CHECKS
from triform.models.decoder import Decoder
from triform.nn.rows import Padded

Command = Callable[..., Any]
TINY = (
    *("--preset", "tiny", "--vocab-size", 100, "--max-len", 16, "--set", "model.d_model=16"),
    *("--set", "model.d_ff=32", "--set", "model.n_layers=1"),
)


def marks(out: str) -> dict[str, str]:
    """What is said of each check."""
    lines = {name: line for line in out.splitlines() for name in CHECKS if name in line}
    assert list(lines) == list(CHECKS)
    return {name: line.split()[0] for name, line in lines.items()}


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_trained_run_passes(triform: Command, request: pytest.FixtureRequest, name: str) -> None:
    answer = triform("check", request.getfixturevalue(name))
    assert answer.code == 0, answer.out
    assert answer.err == ""
    assert answer.out.endswith("\nall good\n")
    assert set(marks(answer.out).values()) <= {"good", "-"}
    idle = {check for check, mark in marks(answer.out).items() if mark == "-"}
    only_writers = {"no weight on the future", "cached decoding equals uncached"} if name == "classifier" else set()
    assert idle == {"no weight outside the window"} | only_writers


def test_a_preset_with_a_window_passes_every_check(triform: Command) -> None:
    answer = triform("check", "--preset", "speeches-window")
    assert answer.code == 0, answer.out
    assert set(marks(answer.out).values()) == {"good"}


def test_a_size_is_checked_for_the_task_and_sizes_that_are_given(triform: Command) -> None:
    arguments = ("--preset", "tiny", "--task", "generate", "--vocab-size", 100, "--max-len", 32)
    answer = triform("check", *arguments, "--json")
    assert answer.json["good"] is True
    details = {finding["name"]: finding["detail"] for finding in answer.json["checks"]}
    count = triform("params", *arguments, "--json").json["parameters"]
    assert details["the parameter count equals the formula"] == f"{count:,} parameters"


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_other_tasks_are_checked_by_settings_too(triform: Command, task: str) -> None:
    answer = triform("check", *TINY, "--task", task, "--labels", 2)
    assert answer.code == 0, answer.out


def test_a_file_of_settings_can_be_checked(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    model = "[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
    file.write_text(f'task = "generate"\n{model}[data]\nmax_len = 12\n', encoding="utf-8")
    assert triform("check", "--config", file, "--vocab-size", 50).code == 0


def test_findings_come_as_json(triform: Command, writer: Path) -> None:
    told = triform("check", writer, "--json").json
    assert told["good"] is True
    assert [finding["name"] for finding in told["checks"]] == list(CHECKS)
    assert {finding["good"] for finding in told["checks"]} == {True, None}
    assert all(finding.keys() == {"name", "good", "detail"} for finding in told["checks"])


def test_a_window_wider_than_the_context_is_noted_and_reads_all_of_the_past(triform: Command) -> None:
    plain = triform("check", *TINY, "--task", "generate")
    wide = triform("check", *TINY, "--task", "generate", "--set", "model.window=64")
    assert wide.code == 0
    assert wide.err == "note: a window of 64 is no limit: the model reads 16 tokens at once\n"
    told = [
        {line for line in answer.out.splitlines() if "outside the window" not in line} for answer in (plain, wide)
    ]
    assert told[0] == told[1]


# ------------------------------------------------------------------------------------------ failures


def test_a_fault_ends_with_exit_code_1_and_is_named(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Padded, "mean", lambda self, x: x.mean(dim=1))
    answer = triform("check", classifier)
    assert answer.code == 1
    found = marks(answer.out)
    failed = {name for name, mark in found.items() if mark == "FAILED"}
    assert failed == {"hidden tokens have no influence", "padding and packing change nothing"}
    assert answer.out.endswith("\n2 of 12 checks failed\n")


def test_a_model_that_cannot_run_fails_with_the_error_named_and_no_traceback(
    triform: Command, writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Decoder, *args: Any) -> None:
        raise ValueError("nothing works")

    monkeypatch.setattr(Decoder, "states", broken)
    answer = triform("check", writer)
    assert answer.code == 1
    assert answer.out.count("ValueError: nothing works") == 11
    assert answer.err == ""


def test_json_says_what_failed_and_the_exit_code_too(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Padded, "mean", lambda self, x: x.mean(dim=1))
    answer = triform("check", classifier, "--json")
    assert answer.code == 1
    told = json.loads(answer.out)
    assert told["good"] is False
    assert sum(finding["good"] is False for finding in told["checks"]) == 2


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "exactly one of RUN, --preset NAME and --config FILE"),
        (("run", "--preset", "tiny"), "exactly one of RUN"),
        (("--preset", "tiny"), "say which with --task"),
        (("--preset", "tiny", "--task", "generate"), "--vocab-size"),
        (("--preset", "tiny", "--task", "generate", "--vocab-size", 9), "--max-len"),
        (("--preset", "tiny", "--task", "classify", "--max-len", 8, "--vocab-size", 9), "--labels"),
        (("--preset", "tinny"), "unknown preset 'tinny'"),
        (("--preset", "speeches-window", "--task", "classify"), "is for generate, not classify"),
        (("--preset", "speeches-window", "--set", "model.window=0"), "leaves a position nothing to read"),
        (("--preset", "speeches-window", "--set", "model.window=-2"), "must lie between -1 and"),
        (("--preset", "speeches-window", "--set", "model.n_heads=3"), "not divisible by model.n_heads=3"),
        (("--preset", "speeches-window", "--set", "model.n_kv_heads=3"), "not divisible by model.n_kv_heads=3"),
        (("--preset", "speeches-window", "--set", "model.windw=4"), "windw"),
        (("--preset", "speeches-window", "--max-len", -5), "max_len=-5"),
    ],
)
def test_settings_that_make_no_model_are_refused(
    triform: Command, arguments: tuple[object, ...], said: str
) -> None:
    assert said in triform("check", *arguments).refusal


@pytest.mark.parametrize("given", [("--set", "model.window=4"), ("--max-len", 9), ("--vocab-size", 9)])
def test_a_run_is_checked_as_it_was_trained(triform: Command, writer: Path, given: tuple[object, ...]) -> None:
    assert "a run is checked as it was trained" in triform("check", writer, *given).refusal


def test_a_missing_run_is_one_line(triform: Command, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in triform("check", tmp_path / "nowhere").refusal


# ------------------------------------------------------------------------------------------ doctor


def test_doctor_names_the_kernel_for_each_kind_of_attention_and_why(triform: Command) -> None:
    answer = triform("doctor")
    assert answer.code == 0, answer.err
    lines = [
        line.removeprefix("attention    ") for line in answer.out.splitlines() if line.startswith("attention ")
    ]
    told = dict(line.split(" -> ") for line in lines)
    names = {kind: said.partition(": ")[0] for kind, said in told.items()}
    assert names["every token, or every earlier one"] == names["positions=t5 or alibi"] == "fused"
    assert names["score=additive"] == names["positions=relative"] == "formula"
    assert names["a window of 128 in 2048 tokens"] in ("fused in pieces", "flex")
    assert names["rows packed without padding"] in ("fused in pieces", "flash")
    for said in told.values():
        why, _, proof = said.partition(": ")[2].partition(" (")
        assert len(why) > 15
        assert proof.startswith("equal to the formula within ")


def test_doctor_finds_a_kernel_that_differs_from_the_formula(
    triform: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triform.nn import choice

    def wrong(q: Any, k: Any, v: Any, *how: Any) -> Any:
        return choice.fused(q, k, v, *how) + 0.1

    broken = choice.FUSED._replace(kernel=wrong)
    monkeypatch.setattr(choice, "FUSED", broken)
    answer = triform("doctor")
    assert answer.code == 1
    assert "fused, every token, or every earlier one: differs from the formula by 1.0e-01" in answer.err


def test_one_label_is_refused(triform: Command) -> None:
    asked = ("--preset", "tiny", "--task", "classify", "--vocab-size", "50", "--max-len", "16", "--labels", "1")
    assert triform("check", *asked).refusal == "--labels 1: a classifier needs at least two labels"
    assert triform("params", *asked).refusal == "--labels 1: a classifier needs at least two labels"
