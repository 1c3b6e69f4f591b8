"""`triform reproduce` and `triform data`, as typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triform.experiments.reproduce.result_file import empty_result, write_result

Command = Any  # `triform(...)` of conftest: it gives an Answer


def test_systems_are_listed(triform: Command) -> None:
    assert "speeches-lm" in triform("reproduce", "list").out
    listed = triform("reproduce", "list", "--json").json
    assert listed["ted-en-fr"]["variants"]["set-4"]["setting"] == "as-reported"


def test_an_unknown_system_is_refused(triform: Command) -> None:
    assert "did you mean 'imdb-encoder'?" in triform("reproduce", "imdb-encode").refusal


def test_an_unknown_variant_of_one_of_several_systems_is_refused(triform: Command) -> None:
    refused = triform("reproduce", "positions", "--variant", "alibi-2").refusal
    assert refused.startswith("--variant alibi-2: positions-classify has no such variant; choose from both, best")


def test_no_seeds_are_refused(triform: Command) -> None:
    for seeds in (0, -1):
        assert (
            f"--seeds {seeds}: each variant needs at least 1 seed"
            in triform("reproduce", "speeches-lm", "--seeds", seeds).refusal
        )


def test_a_system_without_its_data_names_the_file_and_the_command(triform: Command, tmp_path: Path) -> None:
    refused = triform("reproduce", "speeches-lm", "--data", tmp_path).refusal
    assert refused.startswith(
        f"{tmp_path}/speeches/train_CLS.tsv: the file is missing; download it with `triform data get speeches"
    )


def test_the_study_apart_from_the_systems_is_among_the_known_names(triform: Command) -> None:
    assert "why-transformers" in triform("reproduce", "zzz").refusal
    assert "did you mean 'why-transformers'?" in triform("reproduce", "why-transformer").refusal


def test_a_folder_without_results_does_not_replace_a_page(triform: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("earlier")
    refused = triform("reproduce", "tables", "--results", tmp_path / "nowhere", "--out", page).refusal
    assert refused.startswith(f"{tmp_path}/nowhere: no results found")
    assert page.read_text() == "earlier"


def test_the_page_is_made_from_what_there_is(triform: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_result(tmp_path, empty_result("speeches-lm", smoke=False))
    result = triform("reproduce", "tables", "--results", tmp_path, "--out", page)
    assert result.out == f"page: {page}\n"
    assert "Not run yet" in page.read_text()


def test_sets_are_listed(triform: Command) -> None:
    lines = triform("data", "list").out.splitlines()
    assert lines[0].split() == ["dataset", "size", "licence", "description"]
    assert any(line.startswith("tinyshakespeare") and "public domain" in line for line in lines)
    files = triform("data", "list", "--json").json["multi30k_en_de"]["files"]
    assert files["train.en"]["bytes"] == 1_801_238


def test_an_empty_folder_holds_no_known_set(triform: Command, tmp_path: Path) -> None:
    assert "there is no known dataset here" in triform("data", "check", "--data", tmp_path).refusal


def test_an_altered_set_is_refused(triform: Command, tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not?\n")
    refused = triform("data", "check", "--data", tmp_path).refusal
    assert "this is not the expected input.txt: its sha256 is " in refused
    assert ", expected 86c4e6aa9db7c042" in refused
    assert refused.endswith(
        f"remove it and download it again with `triform data get tinyshakespeare --data {tmp_path}`"
    )


def test_a_set_made_by_hand_says_how(triform: Command, tmp_path: Path) -> None:
    assert "seed 20240613" in triform("data", "get", "imdb", "--data", tmp_path).refusal
