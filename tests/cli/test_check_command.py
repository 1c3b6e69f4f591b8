"""`triform check` and what `triform doctor` says of attention."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triform.explain.checks import CHECKS
from triform.models.decoder import Decoder
from triform.nn.layouts import PaddedLayout

Command = Callable[..., Any]
TINY = (
    *("--preset", "tiny", "--vocab-size", 100, "--max-len", 16, "--set", "model.d_model=16"),
    *("--set", "model.d_ff=32", "--set", "model.n_layers=1"),
)


def parse_statuses(out: str) -> dict[str, str]:
    """What is said of each check."""
    lines = {name: line for line in out.splitlines() for name in CHECKS if name in line}
    assert list(lines) == list(CHECKS)
    return {name: line.split()[0] for name, line in lines.items()}


@pytest.mark.parametrize("name", ["classifier", "writer", "translator"])
def test_a_trained_run_passes(triform: Command, request: pytest.FixtureRequest, name: str) -> None:
    result = triform("check", request.getfixturevalue(name))
    assert result.code == 0, result.out
    assert result.err == ""
    assert result.out.endswith("\nall checks passed\n")
    assert set(parse_statuses(result.out).values()) <= {"passed", "skipped"}
    skipped = {check for check, status in parse_statuses(result.out).items() if status == "skipped"}
    decoding_checks = (
        {"no weight on the future", "cached decoding matches uncached"} if name == "classifier" else set()
    )
    assert skipped == {"no weight outside the window"} | decoding_checks


def test_a_preset_with_a_window_passes_every_check(triform: Command) -> None:
    result = triform("check", "--preset", "speeches-window")
    assert result.code == 0, result.out
    assert set(parse_statuses(result.out).values()) == {"passed"}


def test_a_size_is_checked_for_the_task_and_sizes_that_are_given(triform: Command) -> None:
    arguments = ("--preset", "tiny", "--task", "generate", "--vocab-size", 100, "--max-len", 32)
    command_result = triform("check", *arguments, "--json")
    assert command_result.json["good"] is True
    details = {result["name"]: result["detail"] for result in command_result.json["checks"]}
    count = triform("params", *arguments, "--json").json["parameters"]
    assert details["the parameter count matches the formula"] == f"{count:,} parameters"


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_other_tasks_are_checked_by_settings_too(triform: Command, task: str) -> None:
    result = triform("check", *TINY, "--task", task, "--labels", 2)
    assert result.code == 0, result.out


def test_a_file_of_settings_can_be_checked(triform: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    model = "[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
    file.write_text(f'task = "generate"\n{model}[data]\nmax_len = 12\n', encoding="utf-8")
    assert triform("check", "--config", file, "--vocab-size", 50).code == 0


def test_findings_come_as_json(triform: Command, writer: Path) -> None:
    report = triform("check", writer, "--json").json
    assert report["good"] is True
    assert [result["name"] for result in report["checks"]] == list(CHECKS)
    assert {result["good"] for result in report["checks"]} == {True, None}
    assert all(result.keys() == {"name", "good", "detail"} for result in report["checks"])


def test_a_window_wider_than_the_context_is_noted_and_reads_all_of_the_past(triform: Command) -> None:
    plain = triform("check", *TINY, "--task", "generate")
    wide = triform("check", *TINY, "--task", "generate", "--set", "model.window=64")
    assert wide.code == 0
    assert wide.err == "note: a window of 64 has no effect: the model reads only 16 tokens at once\n"
    notes = [
        {line for line in result.out.splitlines() if "outside the window" not in line} for result in (plain, wide)
    ]
    assert notes[0] == notes[1]


# ------------------------------------------------------------------------------------------ failures


def test_a_fault_ends_with_exit_code_1_and_is_named(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaddedLayout, "mean", lambda self, x: x.mean(dim=1))
    result = triform("check", classifier)
    assert result.code == 1
    statuses = parse_statuses(result.out)
    failed = {name for name, status in statuses.items() if status == "FAILED"}
    assert failed == {"masked tokens have no influence", "padding and packing change nothing"}
    assert result.out.endswith("\n2 of 12 checks failed\n")


def test_a_model_that_cannot_run_fails_with_the_error_named_and_no_traceback(
    triform: Command, writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Decoder, *args: Any) -> None:
        raise ValueError("nothing works")

    monkeypatch.setattr(Decoder, "hidden_states", broken)
    result = triform("check", writer)
    assert result.code == 1
    assert result.out.count("ValueError: nothing works") == 11
    assert result.err == ""


def test_json_says_what_failed_and_the_exit_code_too(
    triform: Command, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaddedLayout, "mean", lambda self, x: x.mean(dim=1))
    command_result = triform("check", classifier, "--json")
    assert command_result.code == 1
    report = json.loads(command_result.out)
    assert report["good"] is False
    assert sum(result["good"] is False for result in report["checks"]) == 2


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "exactly one of RUN, --preset NAME and --config FILE"),
        (("run", "--preset", "tiny"), "exactly one of RUN"),
        (("--preset", "tiny"), "fits any task; add --task"),
        (("--preset", "tiny", "--task", "generate"), "--vocab-size"),
        (("--preset", "tiny", "--task", "generate", "--vocab-size", 9), "--max-len"),
        (("--preset", "tiny", "--task", "classify", "--max-len", 8, "--vocab-size", 9), "--labels"),
        (("--preset", "tinny"), "unknown preset 'tinny'"),
        (("--preset", "speeches-window", "--task", "classify"), "is for generate, not classify"),
        (("--preset", "speeches-window", "--set", "model.window=0"), "is too small; a window must be at least 1"),
        (("--preset", "speeches-window", "--set", "model.window=-2"), "must be between -1 and"),
        (("--preset", "speeches-window", "--set", "model.n_heads=3"), "not divisible by model.n_heads=3"),
        (("--preset", "speeches-window", "--set", "model.n_kv_heads=3"), "not divisible by model.n_kv_heads=3"),
        (("--preset", "speeches-window", "--set", "model.windw=4"), "windw"),
        (("--preset", "speeches-window", "--max-len", -5), "max_len=-5"),
    ],
)
def test_settings_that_make_no_model_are_refused(
    triform: Command, arguments: tuple[object, ...], message: str
) -> None:
    assert message in triform("check", *arguments).refusal


@pytest.mark.parametrize("arguments", [("--set", "model.window=4"), ("--max-len", 9), ("--vocab-size", 9)])
def test_a_run_is_checked_as_it_was_trained(triform: Command, writer: Path, arguments: tuple[object, ...]) -> None:
    assert "a run is checked with its own settings" in triform("check", writer, *arguments).refusal


def test_a_missing_run_is_one_line(triform: Command, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in triform("check", tmp_path / "nowhere").refusal


# ------------------------------------------------------------------------------------------ doctor


def test_doctor_names_the_kernel_for_each_kind_of_attention_and_why(triform: Command) -> None:
    result = triform("doctor")
    assert result.code == 0, result.err
    rows = [re.split("  +", line) for line in result.out.splitlines() if "attention" in line]
    kernels = {row[0]: row[1] for row in rows}
    names = {kind: description.partition(": ")[0] for kind, description in kernels.items()}
    assert names["full or causal attention"] == names["attention with positions=t5 or alibi"] == "fused"
    formula_names = {
        names[f"attention with {setting}"] for setting in ("attention_score=additive", "positions=relative")
    }
    assert formula_names == {"formula"}
    assert names["attention in a window of 128 tokens"] in ("fused in tiles", "flex")
    assert names["attention on packed rows"] in ("fused in tiles", "flash")
    for description in kernels.values():
        reason, _, proof = description.partition(": ")[2].partition(" (")
        assert len(reason) > 15
        assert proof.startswith("largest difference from the reference: ")


def test_doctor_finds_a_kernel_that_differs_from_the_formula(
    triform: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triform.nn.kernels import dispatch

    def wrong(q: Any, k: Any, v: Any, *arguments: Any) -> Any:
        return dispatch.sdpa_attention(q, k, v, *arguments) + 0.1

    broken = dispatch.SDPA._replace(kernel=wrong)
    monkeypatch.setattr(dispatch, "SDPA", broken)
    result = triform("doctor")
    assert result.code == 1
    assert "fused (full or causal attention): differs from the reference implementation by 1.0e-01" in result.err


def test_one_label_is_refused(triform: Command) -> None:
    arguments = ("--preset", "tiny", "--task", "classify", "--vocab-size", "50", "--max-len", "16", "--labels", "1")
    assert triform("check", *arguments).refusal == "--labels 1: a classifier needs at least two labels"
    assert triform("params", *arguments).refusal == "--labels 1: a classifier needs at least two labels"
